"""Processes of a server: find, start, stop. Who is alive is asked of the system, not of pid files.

A zombie counts as dead: where process 1 reaps nothing, a killed server stays one for ever.
"""

import re
import signal
import subprocess
import time
from contextlib import suppress

import psutil

from config.servers.errors import ServerCannotStart
from config.servers.server import Say, Server

START_TIMEOUT = 60.0
#: For a stop in order, and again for the end after SIGKILL.
STOP_TIMEOUT = 10.0
POLL_INTERVAL = 0.02
#: PostgreSQL says so while children of a killed postmaster still use its memory; they end by themselves.
ORPHANS_REMAIN = "pre-existing shared memory block"


def start(server: Server, say: Say) -> psutil.Process:
    """The running server: adopted if it answers and serves what is in the folder, else started anew."""
    processes = find(server)
    for process in processes:
        # Others may be in the list: a session that was just forked still has the server's command line.
        if server.owns(process.pid) and server.answers():
            server.complete()
            return process
    for process in processes:
        end(process, server.stop_signal)
    server.clear()
    server.prepare(say)
    return _start_anew(server)


def find(server: Server) -> list[psutil.Process]:
    """Living processes of this checkout's server, whoever started them, oldest first."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == server.program and server.marker in " ".join(process.cmdline()):
                found.append(process)
    return [process for process in found if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    if isinstance(process, psutil.Popen):
        return process.poll() is None  # reaps it, too
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(process: psutil.Process, gentle: signal.Signals) -> None:
    """Stop it in order, else by SIGKILL."""
    for number in (gentle, signal.SIGKILL):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            process.resume()  # one that somebody paused hears nothing else
        deadline = time.monotonic() + STOP_TIMEOUT
        while is_alive(process):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL)
        else:
            return


def _start_anew(server: Server) -> psutil.Process:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        process = _spawn(server)
        try:
            if _wait_for_answer(server, process, deadline):
                server.complete()
                return process
        except BaseException:
            # Also when this process is told to end: nobody would know of the server.
            end(process, server.stop_signal)
            raise
        text = server.log.read_text(errors="replace")
        if ORPHANS_REMAIN not in text or time.monotonic() > deadline:
            raise ServerCannotStart(server.name, last_words(text), log=server.log)
        time.sleep(POLL_INTERVAL)


def _spawn(server: Server) -> psutil.Popen:
    with server.log.open("wb") as log:
        return psutil.Popen(
            server.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=server.demote(),
        )


def _wait_for_answer(server: Server, process: psutil.Popen, deadline: float) -> bool:
    """False if it ended before it answered."""
    while is_alive(process):
        if server.answers():
            return True
        if time.monotonic() > deadline:
            raise ServerCannotStart(server.name, f"no answer in {START_TIMEOUT:g} s", log=server.log)
        time.sleep(POLL_INTERVAL)
    return False


def last_words(text: str) -> str:
    """What a log says last: the last fatal message, else the last line, without time and pid."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it ended without a word"]
    fatal = [line for line in lines if "FATAL" in line or line.startswith("initdb: error")]
    return re.sub(r"^.*?(FATAL: +|initdb: error: |\d:\w [^#*]*[#*] )", "", (fatal or lines)[-1])
