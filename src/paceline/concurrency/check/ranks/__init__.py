"""What each rank of a distributed program does: branches, collectives and messages, in their order."""
