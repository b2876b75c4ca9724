"""Files are written in the background, in order, and a failure stops the run."""

import threading
import time

import pytest

from robustkit.pipeline.units import Writer


def test_in_order_in_another_thread_and_all_before_the_end() -> None:
    done: list[tuple[int, int]] = []

    def write(number: int) -> None:
        time.sleep(0.002 if number % 3 else 0.01)
        done.append((number, threading.get_ident()))

    with Writer() as writer:
        for number in range(20):
            writer.submit(lambda number=number: write(number))
    assert [number for number, _ in done] == list(range(20))
    assert len({thread for _, thread in done}) == 1 and done[0][1] != threading.get_ident()


def test_only_so_much_waits() -> None:
    gate, begun = threading.Event(), list[int]()

    def slow() -> None:
        begun.append(0)
        gate.wait(10)

    with Writer(ahead=2) as writer:
        writer.submit(slow)
        writer.submit(lambda: begun.append(1))
        third = threading.Thread(target=writer.submit, args=(lambda: begun.append(2),))
        third.start()
        third.join(0.1)
        assert third.is_alive() and begun == [0]
        gate.set()
        third.join(10)
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("last", [False, True], ids=["on the way", "at the end"])
def test_a_failure_is_raised_and_what_follows_is_not_written(last: bool) -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), Writer() as writer:
        writer.submit(lambda: done.append(0))
        writer.submit(fail)
        if not last:
            for number in range(1, 50):
                writer.submit(lambda number=number: done.append(number))
                time.sleep(0.001)
            done.append(-1)  # not reached
    assert done == [0]


def test_an_interrupt_leaves_what_was_whole() -> None:
    done: list[int] = []

    def write(number: int) -> None:
        time.sleep(0.02)
        done.append(number)

    with pytest.raises(KeyboardInterrupt), Writer() as writer:
        for number in range(3):
            writer.submit(lambda number=number: write(number))
        raise KeyboardInterrupt
    assert done == [0, 1, 2]
