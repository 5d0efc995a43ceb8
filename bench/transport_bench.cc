// Measures the time of a transfer between two ranks, compared with raw MPI in the same run, and how
// much of it overlaps with compute:  mpirun -n 2 transport_bench [RAW.json TITLE [REPETITIONS]]
// bench/report.py makes its tables from RAW.json.
//
// Prints one line per size: one way with raw MPI and with the transport (microseconds, median),
// their ratio (median and quartiles), and the fraction of the transport's time during which neither
// side waits if both compute meanwhile, for twice that time and at least 0.2 ms, as small stages do
// (median and best quarter: on a busy machine the other rank may not be running). Also prints by
// how much the compute of both, and the call that sends, take longer.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include "base/files/read_file.h"
#include "base/json.h"
#include "base/size.h"
#include "bench/mpi_pingpong.h"
#include "runtime/transport/mpi_transport.h"

using namespace pipewright;

namespace {

double Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

double Quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  double at = q * (samples.size() - 1);
  size_t low = static_cast<size_t>(at);
  size_t high = std::min(low + 1, samples.size() - 1);
  return samples[low] + (samples[high] - samples[low]) * (at - low);
}

// Uses registers only: the extra time that it takes beside a transfer is processor time that the
// transfer used. Calls Progress every few microseconds, as stages do with every operation.
double Compute(Transport& t, int64_t turns) {
  double start = Now();
  uint64_t x = 88172645463325252ull;
  for (int64_t i = 0; i < turns; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    if (i % 4096 == 0) t.Progress();
  }
  asm volatile("" : : "r"(x));  // keeps the loop from being optimized away
  return Now() - start;
}

struct Arena {
  std::shared_ptr<char> memory;
  size_t stride;
  int buffers;

  // Makes many buffers, so that each is cold when its turn comes again, in memory where the
  // transport wants to receive.
  Arena(size_t bytes, Transport& t)
      : stride((bytes + 4095) / 4096 * 4096),
        buffers(static_cast<int>(std::clamp<size_t>((256u << 20) / stride, 2, 4096))) {
    size_t total = stride * buffers;
    if (std::shared_ptr<void> place = t.Memory(total))
      memory = {static_cast<char*>(place.get()), [place](char*) {}};
    else
      memory.reset(static_cast<char*>(aligned_alloc(4096, total)), free);
    memset(memory.get(), 1, total);
  }
  Bundle At(int i, size_t bytes) const {
    return {{{memory.get() + stride * (i % buffers), bytes}}, memory};
  }
};

// Makes each side write once to all buffers of the other: its first write to a page maps it.
void MapAll(Transport& t, const Arena& arena, size_t bytes) {
  for (int i = 0; i < arena.buffers; ++i) {
    Token into = t.Recv(1 - t.rank(), 0, arena.At(i, bytes));
    t.AllGather("");
    t.WaitFor(t.Send(1 - t.rank(), 0, arena.At(i + 1, bytes)), {Awaited::kTensor});
    t.WaitFor(into, {Awaited::kTensor});
  }
}

double OurPingPong(Transport& t, const Arena& arena, size_t bytes, int rounds) {
  t.AllGather("");
  double start = Now();
  for (int i = 0; i < rounds; ++i) {
    auto send = [&] { return t.Send(1 - t.rank(), 0, arena.At(2 * i, bytes)); };
    auto receive = [&] {
      t.WaitFor(t.Recv(1 - t.rank(), 0, arena.At(2 * i + 1, bytes)), {Awaited::kTensor});
    };
    Token sent;
    if (t.rank() == 0) {
      sent = send();
      receive();
    } else {
      receive();
      sent = send();
    }
    t.WaitFor(sent, {Awaited::kTensor});
  }
  return (Now() - start) / (2 * rounds);
}

// Seconds that a side waited after its compute, and by which its compute, with the call that sends,
// took longer.
struct Overlap {
  double waited, slower;
};
Overlap Behind(Transport& t, const Arena& arena, size_t bytes, int64_t turns, int i) {
  t.AllGather("");
  double alone = Compute(t, turns);
  t.AllGather("");
  Token token;
  if (t.rank() == 1) token = t.Recv(0, 1, arena.At(i, bytes));
  t.AllGather("");  // in plans, a receive is posted before its send
  double start = Now();
  if (t.rank() == 0) token = t.Send(1, 1, arena.At(i, bytes));
  t.BeginCompute();
  Compute(t, turns);
  double computed = Now();
  t.WaitFor(token, {Awaited::kTensor});
  return {Now() - computed, computed - start - alone};
}

// Returns the seconds that a copy of cold memory adds to the compute of rank 0, while the other
// rank computes, too.
double CopyBeside(Transport& t, const Arena& arena, size_t bytes, int64_t turns, int i) {
  t.AllGather("");
  double alone = Compute(t, turns);
  t.AllGather("");
  double start = Now();
  if (t.rank() == 0)
    memcpy(arena.At(i, bytes).regions[0].data, arena.At(i + 1, bytes).regions[0].data, bytes);
  Compute(t, turns);
  return Now() - start - alone;
}

// Returns the values of both ranks.
std::vector<double> Both(Transport& t, double mine) {
  std::vector<double> values;
  for (const std::string& bytes : t.AllGather({reinterpret_cast<char*>(&mine), sizeof(mine)})) {
    values.emplace_back();
    memcpy(&values.back(), bytes.data(), sizeof(double));
  }
  return values;
}
double Larger(Transport& t, double mine) {
  const std::vector<double> both = Both(t, mine);
  return std::max(both[0], both[1]);
}
double Sum(Transport& t, double mine) {
  const std::vector<double> both = Both(t, mine);
  return both[0] + both[1];
}

std::vector<double> Quartiles(const std::vector<double>& samples) {
  return {Quantile(samples, 0.5), Quantile(samples, 0.25), Quantile(samples, 0.75)};
}

int Run(Transport& t, const std::string& raw_path, const std::string& title, int repetitions) {
  if (t.size() != 2) throw UsageError("transport_bench runs on 2 ranks");
  Json samples, ratios;
  Json table = {
      "| bytes | raw MPI, us | ours, us | ours ÷ raw | hidden behind compute | best quarter "
      "| compute beside it longer by, us | memcpy, us |",
      "|---|---|---|---|---|---|---|---|"};
  double turn = 1e9;
  for (int i = 0; i < 5; ++i) turn = std::min(turn, Compute(t, 4000000) / 4000000);
  if (t.rank() == 0)
    printf("%10s %10s %10s %7s %15s %9s %9s %9s %9s\n", "bytes", "raw us", "ours us", "ratio",
           "quartiles", "overlap", "quarter", "copy us", "memcpy us");
  for (size_t bytes : {1u << 10, 4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20, 4u << 20,
                       16u << 20, 64u << 20}) {
    Arena arena(bytes, t);
    MapAll(t, arena, bytes);
    int rounds = static_cast<int>(std::clamp<size_t>((32u << 20) / bytes, 2, 500));
    std::vector<double> raw, ours, ratio, waited, slower, copies;
    for (int i = 0; i < repetitions; ++i) {
      raw.push_back(RawPingPong(arena.memory.get(), arena.stride, arena.buffers, bytes, rounds));
      ours.push_back(OurPingPong(t, arena, bytes, rounds));
      ratio.push_back(ours.back() / raw.back());
    }
    double time = Quantile(ours, 0.5);
    auto turns = static_cast<int64_t>(std::max(2 * Larger(t, time), 200e-6) / turn);
    for (int i = 0; i < 3 * repetitions; ++i) {
      Overlap overlap = Behind(t, arena, bytes, turns, 2 * i);
      waited.push_back(Larger(t, overlap.waited));
      slower.push_back(Sum(t, overlap.slower));
      copies.push_back(Sum(t, CopyBeside(t, arena, bytes, turns, 2 * i + 1)));
    }
    if (t.rank() == 0)
      printf("%10zu %10.1f %10.1f %7.2f %7.2f-%-7.2f %8.0f%% %8.0f%% %9.1f %9.1f\n", bytes,
             Quantile(raw, 0.5) * 1e6, time * 1e6, Quantile(ratio, 0.5), Quantile(ratio, 0.25),
             Quantile(ratio, 0.75), 100 * (1 - Quantile(waited, 0.5) / time),
             100 * (1 - Quantile(waited, 0.25) / time), Quantile(slower, 0.5) * 1e6,
             Quantile(copies, 0.5) * 1e6);
    fflush(stdout);
    const std::string size = SizeText(bytes);
    const std::vector<double> quartiles = Quartiles(ratio);
    samples[size] = {{"raw", raw}, {"ours", ours}, {"waited", waited}, {"slower", slower}};
    ratios[title + " " + size] = {{"ours/raw", quartiles}};
    char row[200];
    snprintf(row, sizeof row,
             "| %s | %.1f | %.1f | %.2f (%.2f–%.2f) | %.0f %% | %.0f %% | %.1f | %.1f |",
             size.c_str(), Quantile(raw, 0.5) * 1e6, time * 1e6, quartiles[0], quartiles[1],
             quartiles[2], 100 * (1 - Quantile(waited, 0.5) / time),
             100 * (1 - Quantile(waited, 0.25) / time), Quantile(slower, 0.5) * 1e6,
             Quantile(copies, 0.5) * 1e6);
    table.push_back(row);
  }
  if (t.rank() == 0 && !raw_path.empty())
    WriteFile(raw_path, FormatJson(Json{{"title", "Transfers, " + title},
                                        {"samples", samples},
                                        {"ratios", ratios},
                                        {"table", table}}));
  return kSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string raw = argc > 2 ? argv[1] : "", title = argc > 2 ? argv[2] : "";
  const int repetitions = argc > 3 ? atoi(argv[3]) : 9;
  return RunMpi(&argc, &argv, argv[0],
                [&](Transport& t) { return Run(t, raw, title, repetitions); });
}
