#include "nccl_ranks.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

namespace pipewright {

NcclRank MakeRank(const NcclId& id, int rank, int ranks) {
  sim::CurrentDevice() = rank % sim::DeviceCount();
  NcclRank made{rank, ranks, nullptr, sim::NewQueue(sim::CurrentDevice())};
  NcclConfig config;
  CheckNccl(Nccl().CommInitRankConfig(&made.comm, ranks, id, rank, &config), "ncclCommInitRank",
            nullptr);
  return made;
}

NcclId NewId() {
  NcclId id;
  CheckNccl(Nccl().GetUniqueId(&id), "ncclGetUniqueId", nullptr);
  return id;
}

std::string OnThreads(int ranks, const std::function<void(NcclRank&)>& act) {
  const NcclId id = NewId();
  std::mutex mutex;
  std::string thrown;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        NcclRank made = MakeRank(id, rank, ranks);
        act(made);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        thrown += "rank " + std::to_string(rank) + ": " + e.what() + "\n";
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

ScopedVariable::ScopedVariable(const char* name, const char* value) : name_(name) {
  setenv(name, value, 1);
}
ScopedVariable::~ScopedVariable() { unsetenv(name_); }

RankProcess StartProcess(const std::string& role, const NcclId& id, int rank, int ranks) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  const std::string r = std::to_string(rank), all = std::to_string(ranks);
  const char* arguments[] = {"/proc/self/exe", "--rank",     r.c_str(), all.c_str(),
                             id.bytes,         role.c_str(), nullptr};
  const int pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execv(arguments[0], const_cast<char**>(arguments));
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

std::string EndOf(const RankProcess& process) {
  std::string printed;
  char buffer[4096];
  for (ssize_t n; (n = read(process.output, buffer, sizeof(buffer))) > 0;)
    printed.append(buffer, static_cast<size_t>(n));
  close(process.output);
  int status = 0;
  waitpid(process.pid, &status, 0);
  return printed + (status == 0 ? "" : "status " + std::to_string(status));
}

}  // namespace pipewright
