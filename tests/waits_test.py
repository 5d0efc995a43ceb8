"""The watchdog knows every wait of a rank's thread: the sources block only in the places listed here,
each of which records in the rank's status what it waits for, or is not a wait of a rank for
others."""

import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

BLOCKS = re.compile(
    r"\bMPI_(?!I)(Wait|Barrier|Recv|S?send|Bcast|Probe|Finalize|Comm_(dup|split)|"
    r"(All)?(gather|reduce|toall)|Scatter|Allgather|Allreduce|Alltoall)\w*\(|"
    r"\bwait(_for|_until)?\(|\.join\(\)|\bsleep_(for|until)\(|\bu?sleep\(|\bnanosleep\(|"
    r"\bpoll\(&|\bwaitpid\(|\bsigtimedwait\(|\bflock\(|\blockf\(|\bF_(OFD_)?SETLKW\b|"
    r"std::getline\(std::cin|\bstd::(barrier|latch|\w*semaphore)\b|\.Wait\(|->Wait\(|"
    r"\bsynchronize\w*\(")

# Maps a file to its number of blocking calls, and why the watchdog need not know more.
KNOWN = {
    "runtime/exec/transport.cc": (1, "WaitUntil says what it waits for"),
    "runtime/exec/transport.h": (1, "for transports that wrap another: within WaitFor"),
    "runtime/links/nccl_transport.cc": (4, "the end of the run; the pause between two looks, within WaitFor; the monitor's thread; 2 s for aborts"),
    "runtime/stage/device_clock.cc": (1, "an event that the device reaches by itself"),
    "runtime/transport/thread_transport.cc":
        (5, "WaitFor and AllGather say it; the others are the monitor's and the end of the run"),
    "runtime/transport/mpi_transport.cc":
        (9, "before the watch knows of the rank; the end says it; the progress thread; 0.1 s of Abort"),
    "runtime/transport/mpi_run.cc": (1, "at most 10 s, after an error on which all ranks agree"),
    "runtime/transport/spin_wait.cc": (1, "the pause between two looks, within WaitFor and AllGather"),
    "runtime/transport/fault_transport.cc": (2, "for tests: within WaitFor, and until delays are over"),
    "runtime/disk/weight_stream.cc": (3, "Await says it; the readers wait for work, and are joined"),
    "runtime/stage/offload.cc": (2, "WeightStream::Wait, which says it"),
    "runtime/checkpoint/checkpoint.cc": (5, "looks without waiting; threads that write; the end says it"),
    "runtime/checkpoint/checkpoint_folder.cc": (1, "at most a second"),
    "runtime/commands/bench_requests.cc": (1, "rank 0 reads its input, the others say so"),
    # Threads and processes that watch, not ranks.
    "runtime/watch/watch.cc": (5, "the thread that watches; bounded waits at start and end"),
    "runtime/watch/watchdog.cc": (6, "the guard's process"),
    "runtime/watch/supervise.cc": (4, "the supervisor's process"),
    "runtime/watch/banners.cc": (3, "the launcher's process"),
    "runtime/watch/status_folder.cc": (2, "held only while a folder is looked through"),
}


def found():
    count = collections.Counter()
    lines = []
    for path in sorted((ROOT / "runtime").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            calls = len(BLOCKS.findall(code))
            if calls:
                count[name] += calls
                lines.append(f"{name}:{number}: {line.strip()}")
    return count, lines


class Waits(unittest.TestCase):
    def test_no_other_place_blocks(self):
        count, lines = found()
        known = {name: calls for name, (calls, _) in KNOWN.items()}
        for name in sorted(known.keys() | count.keys()):
            here = "\n".join(line for line in lines if line.startswith(name + ":"))
            self.assertEqual(count[name], known.get(name, 0),
                             f"{name} blocks in other places than tests/waits_test.py lists. Wait by "
                             f"Transport::WaitFor or WaitUntil, which the watchdog hears of:\n{here}")

    def test_a_wait_is_found(self):
        for line in ("MPI_Wait(&r, s);", "MPI_Barrier(comm);", "wake.wait(lock);", "thread.join();",
                     "std::this_thread::sleep_for(ms(2));", "work->wait();", "usleep(10);",
                     "transport.Wait(token);", "MPI_Finalize();", "flock(fd, LOCK_EX)"):
            self.assertTrue(BLOCKS.search(line), line)
        for line in ("transport.WaitFor(token, awaited);", "MPI_Isend(a, b);", "MPI_Iallgather(x)",
                     "status().WaitFor({});", "std::string join(x)"):
            self.assertFalse(BLOCKS.search(line), line)


if __name__ == "__main__":
    unittest.main()
