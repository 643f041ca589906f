"""Tools of a developer's day that build, test, serve and wait, and do not hang; run only to judge."""

from __future__ import annotations

import time

from programs.parts import BIN, background, folder, repeat, run, script


def builds_with_ninja() -> None:
    place = folder()
    (place / "a.cc").write_text('#include <regex>\nint main() { return std::regex_match("a", std::regex("a+")); }\n')
    (place / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(a CXX)\nadd_executable(a a.cc)\n"
    )
    configure = ["cmake", "-G", "Ninja", "-S", place, "-B", place / "build"]
    repeat(configure, ["ninja", "-C", place / "build"], ["ninja", "-C", place / "build", "clean"], pause=14)


def builds_with_cargo() -> None:
    place = folder()
    run("cargo", "init", "--vcs", "none", "--name", "a", place)
    manifest = ["--offline", "--manifest-path", place / "Cargo.toml"]
    repeat(["cargo", "build", *manifest], ["cargo", "test", *manifest], ["cargo", "clean", *manifest], pause=16)


def compiles_java() -> None:
    file = script("public class Main { public static void main(String[] w) { System.out.println(1); } }", "Main.java")
    repeat(["javac", file], ["java", "-cp", file.parent, "Main"], pause=18)


def checks_types() -> None:
    file = script("def twice(x: int) -> int:\n    return 2 * x\n")
    check = [BIN / "python", "-m", "mypy", "--cache-dir", file.parent / "cache", file]
    repeat(check, ["touch", file], pause=20)


def debugger_at_a_breakpoint() -> None:
    """A program that the debugger has stopped, while its user thinks."""
    run("sh", "-c", "(echo 'break malloc'; echo run; sleep 900) | gdb -q -nx /bin/date")


def python_debugger_at_its_prompt() -> None:
    run("sh", "-c", f"(echo next; sleep 900) | {BIN / 'python'} -m pdb {script('x = 1')}")


def traced_program() -> None:
    run("strace", "-f", "-o", "/dev/null", "sh", "-c", "while true; do sleep 20; true; done")


def tests_in_several_processes() -> None:
    file = script(
        "import time, pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_a(n): time.sleep(21)", "test_a.py"
    )
    run(BIN / "python", "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", file)


def tests_with_a_server_as_fixture() -> None:
    file = script(
        """
        import subprocess, sys, time, urllib.request, pytest

        @pytest.fixture(scope="session")
        def server():
            command = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                yield process
                process.terminate()

        @pytest.mark.parametrize("n", range(40))
        def test_answers(server, n):
            time.sleep(17)
            assert server.poll() is None
        """,
        "test_server.py",
    )
    run(BIN / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", file)


def folder_that_is_watched() -> None:
    """The library watchdog runs a command when a file changes, which is every half a minute."""
    place = folder()
    file = script(
        f"""
        import subprocess, time
        from watchdog.events import FileSystemEventHandler
        from watchdog.observers import Observer

        class Build(FileSystemEventHandler):
            def on_modified(self, event):
                subprocess.run(["true"])

        observer = Observer()
        observer.schedule(Build(), {str(place)!r}, recursive=True)
        observer.start()
        observer.join()
        """
    )
    with background(BIN / "python", file, wait=3):
        repeat(["touch", place / "file"], pause=30)


def notebook_that_is_executed() -> None:
    file = script(
        """
        import nbformat
        from nbclient import NotebookClient
        cells = ["import time, threading", "time.sleep(25)", "threading.Event().wait(40)", "sum(range(10 ** 7))"]
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
        while True:
            NotebookClient(book).execute()
        """
    )
    run(BIN / "python", file)


def idle_interactive_python() -> None:
    run("script", "-qc", f"{BIN / 'python'} -m IPython --no-banner", "/dev/null")


def python_that_idles_behind_a_pipe() -> None:
    run("sh", "-c", f"(echo x=1; sleep 900) | {BIN / 'python'} -i")


def server_that_is_reloaded() -> None:
    """The reloader watches the source, its child serves."""
    file = script("async def app(scope, receive, send): ...\n", "service.py")
    command = [BIN / "python", "-m", "uvicorn", "service:app", "--reload", "--port", "0", "--app-dir", file.parent]
    with background(*command, wait=10):
        repeat(["touch", file], pause=70)


def daemon_of_type_checks() -> None:
    """A server in the foreground that keeps what it has checked, and waits for the next request."""
    file = script("x: int = 1\n")
    command = [BIN / "python", "-m", "mypy.dmypy", "--status-file", file.parent / "status"]
    with background(*command, "daemon", wait=4):
        while True:
            run(*command, "check", file)
            time.sleep(50)


def repository_that_is_fetched() -> None:
    place = folder()
    run("git", "init", "-q", place / "there")
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"]
    run("git", "-C", place / "there", *commit)
    run("git", "clone", "-q", place / "there", place / "here")
    repeat(["git", "-C", place / "there", *commit], ["git", "-C", place / "here", "pull", "-q"], pause=23)


PROGRAMS = {
    each.__name__: each
    for each in (
        builds_with_ninja, builds_with_cargo, compiles_java, checks_types, debugger_at_a_breakpoint,
        python_debugger_at_its_prompt, traced_program, tests_in_several_processes, tests_with_a_server_as_fixture,
        folder_that_is_watched, notebook_that_is_executed, idle_interactive_python, python_that_idles_behind_a_pipe,
        server_that_is_reloaded, daemon_of_type_checks, repository_that_is_fetched,
    )
}  # fmt: skip
