"""tap.py - test programs in Python: cases and TAP.

A program is a file of

    @test
    def promise_it_checks():
        assert ...

    main()

Each case runs in a child process of its own, in the order of the file, and fails when
it raises, when it crashes and when it takes too long. What it prints becomes
diagnostics before its result. skip("why") ends a case that this machine cannot run.

    program [--all] [CASE...]   run the cases, slow ones only with --all or by name
    program --list              print their names

Exit status: 0 all passed or skipped, 1 some failed, 77 all skipped.
"""

import os
import random
import signal
import sys
import tempfile
import traceback

LIMIT_S, SLOW_LIMIT_S = 60, 600
EXIT_SKIPPED, EXIT_DONE = 77, 78    # a case ends with 0 when something in it exits

_cases = []


class _Skip(Exception):
    pass


def test(function=None, *, slow=False, limit=None):
    """Registers a case; limit: seconds, instead of one minute (slow: ten)."""
    def register(function):
        function.slow = slow
        function.limit = limit or (SLOW_LIMIT_S if slow else LIMIT_S)
        _cases.append(function)
        return function
    return register(function) if function else register


def lengths(short, long, limit=None):
    """Registers a case that is told how much it is to do, and NAME_at_length, which is slow; limit:
    that of the short one."""
    def register(function):
        def at_length():
            function(long)

        def plain():
            function(short)
        plain.__name__, at_length.__name__ = function.__name__, function.__name__ + "_at_length"
        test(plain, limit=limit)
        test(at_length, slow=True)
        return function
    return register


def skip(why):
    raise _Skip(why)


def seed():
    """PLATTER_SEED, or a fresh one; printed, so that a failure can be repeated."""
    number = int(os.environ.get("PLATTER_SEED") or random.getrandbits(32))
    print("seed", number)
    return number


def _run_in_child(case, limit, output, skip_reason):
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    signal.alarm(limit)  # its default action ends even a case that hangs inside a library
    status = 1
    try:
        case()
        status = EXIT_DONE
    except _Skip as why:
        skip_reason.write(str(why).encode())
        skip_reason.flush()
        status = EXIT_SKIPPED
    except BaseException as e:
        traceback.print_exception(e.with_traceback(e.__traceback__.tb_next))
        if isinstance(e, AssertionError) and not e.args:
            print(traceback.extract_tb(e.__traceback__)[-1].line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(case):
    """Returns "passed", "failed" or "skipped", and why it was skipped."""
    limit = case.limit * int(os.environ.get("PLATTER_SLOWNESS") or 1)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as skip_reason:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run_in_child(case, limit, output, skip_reason)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        for line in output.read().decode(errors="replace").splitlines():
            print("#", line)
        skip_reason.seek(0)
        reason = " ".join(skip_reason.read().decode().split())
    if code == -signal.SIGALRM:
        print(f"# not finished after {limit} seconds")
    elif code < 0:
        print("# killed:", signal.strsignal(-code))
    elif code == 0:
        print("# it ended before its end")
    if code == EXIT_SKIPPED and reason:
        return "skipped", reason
    return "passed" if code == EXIT_DONE else "failed", ""


def main():
    options = [a for a in sys.argv[1:] if a.startswith("-")]
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    if set(options) - {"--all", "--list"}:
        sys.exit(f"usage: {sys.argv[0]} [--list | --all | CASE...]")
    for name in names:
        if name not in [c.__name__ for c in _cases]:
            sys.exit(f"no case {name} here; --list shows them")
    if "--list" in options:
        for case in _cases:
            print(case.__name__ + (" # slow" if case.slow else ""))
        sys.exit(0)
    chosen = [c for c in _cases
              if (c.__name__ in names if names else "--all" in options or not c.slow)]
    print(f"1..{len(chosen)}")
    outcomes = set()
    for number, case in enumerate(chosen, 1):
        outcome, reason = _run(case)
        print("not ok" if outcome == "failed" else "ok", number, "-", case.__name__
              + (f" # SKIP {reason}" if outcome == "skipped" else ""), flush=True)
        outcomes.add(outcome)
    sys.exit(1 if "failed" in outcomes else EXIT_SKIPPED if outcomes == {"skipped"} else 0)
