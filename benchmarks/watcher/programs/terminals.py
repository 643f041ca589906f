"""Commands of a shell's user that wait for keys, for files, for each other or for the time; run only to judge."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

from programs.parts import background, folder, free_port, run, script


def _shell(text: str) -> None:
    run("bash", "-c", text)


def _terminal(command: str) -> None:
    """Run a command in a terminal whose keys come from a pipe that stays open, as a window's do."""
    _shell(f"sleep 900 | script -qc {shlex.quote(command)} /dev/null")


def pager_at_its_prompt() -> None:
    _terminal("less /proc/meminfo")


def editor_with_an_open_file() -> None:
    _terminal(f"vi {script('x = 1')}")


def table_of_processes() -> None:
    _shell("top -b -d 15 > /dev/null")


def command_that_is_watched() -> None:
    _terminal("watch -n 20 date")


def background_job_that_is_awaited() -> None:
    _shell("trap 'exit 0' TERM; sleep 300 & sleep 200 & wait")


def log_through_filters() -> None:
    log = folder() / "log"
    log.touch()
    _shell(f"(while true; do sleep 50; echo error >> {log}; done) & tail -F {log} | grep --line-buffered error | cat")


def several_commands_of_xargs() -> None:
    _shell("while true; do printf '20\\n35\\n50\\n' | xargs -n 1 -P 2 sleep; done")


def agent_of_keys() -> None:
    _shell("ssh-agent -D -a " + str(folder() / "agent"))


def client_whose_proxy_is_silent() -> None:
    """As at a machine that accepts the connection and says nothing for a while."""
    _shell("while true; do ssh -o ProxyCommand='sleep 45; echo' nowhere.invalid; sleep 20; done")


def two_that_lock_a_file() -> None:
    lock = folder() / "lock"
    _shell(f"(while true; do flock {lock} sleep 40; done) & while true; do flock {lock} true; sleep 5; done")


def reader_of_a_slow_named_pipe() -> None:
    fifo = folder() / "jobs"
    os.mkfifo(fifo)
    _shell(f"(sleep 100; while true; do echo job; sleep 45; done > {fifo}) & while read -r job; do :; done < {fifo}")


def named_pipe_that_a_stranger_opens_late() -> None:
    """Two workers of a daemon read commands from a known place, into which its user writes."""
    fifo = Path(tempfile.gettempdir()) / "commands"
    os.mkfifo(fifo)
    _shell(f"cat {fifo} & cat {fifo} & sleep 1000")


def at_the_hour() -> None:
    _shell("while true; do sleep $((3600 - $(date +%s) % 3600)); done")


def download_at_a_low_rate() -> None:
    place, port = folder(), free_port()
    (place / "image").write_bytes(bytes(3_000_000))
    with background("python3", "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", place, wait=2):
        while True:
            run("wget", "-q", "--limit-rate=30k", "-O", "/dev/null", f"http://127.0.0.1:{port}/image")
            time.sleep(12)


def backup_with_pauses() -> None:
    place = folder()
    (place / "data").write_bytes(os.urandom(4_000_000))
    _shell(
        f"while true; do tar -C {place} -cf - data | xz -1 > {place}/backup.xz; sync {place}/backup.xz; sleep 40; done"
    )


def disk_copied_slowly() -> None:
    _shell("(while true; do head -c 100000 /dev/zero; sleep 11; done) | dd of=/dev/null bs=1M iflag=fullblock")


def idle_encrypted_connection() -> None:
    place, port = folder(), free_port()
    files = f"-keyout {place}/key -out {place}/cert"
    _shell(f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a -days 1 {files}")
    with background("openssl", "s_server", "-quiet", "-accept", port, "-key", f"{place}/key", "-cert", f"{place}/cert"):
        _shell(f"(sleep 900; echo hello) | openssl s_client -quiet -connect 127.0.0.1:{port}")


def server_of_perl() -> None:
    script_of_perl = """
    use IO::Socket::INET; use IO::Select;
    my $server = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die;
    my $ready = IO::Select->new($server);
    while ($ready->can_read) { my $there = $server->accept; print $there "hello\\n"; }
    """
    run("perl", "-e", script_of_perl)


def prompt_that_asks_for_confirmation() -> None:
    """An installer in a terminal that a window shows: it waits for a key, the window for both."""
    _terminal("bash -c 'read -r -p \"Continue? \" answer'")


def parallel_jobs_with_a_token_pipe() -> None:
    """A job server: who has read a token may work, and writes it back."""
    fifo = folder() / "tokens"
    os.mkfifo(fifo)
    job = "while true; do read -r -n 1 token <&9; sleep 30; printf x >&9; done"
    _shell(f"exec 9<>{fifo}; printf xx >&9; ({job}) & ({job}) & ({job}) & wait")


def mail_that_is_polled() -> None:
    inbox = folder()
    while not list(inbox.iterdir()):
        subprocess.run(["true"], check=True)
        time.sleep(10)


PROGRAMS = {
    each.__name__: each
    for each in (
        pager_at_its_prompt, editor_with_an_open_file, table_of_processes, command_that_is_watched,
        background_job_that_is_awaited, log_through_filters, several_commands_of_xargs, agent_of_keys,
        client_whose_proxy_is_silent, two_that_lock_a_file, reader_of_a_slow_named_pipe,
        named_pipe_that_a_stranger_opens_late, at_the_hour, download_at_a_low_rate, backup_with_pauses,
        disk_copied_slowly, idle_encrypted_connection, server_of_perl, prompt_that_asks_for_confirmation,
        parallel_jobs_with_a_token_pipe, mail_that_is_polled,
    )
}  # fmt: skip
