"""Plans and runs explained: drawn as text, proved, laid out as timetables."""
