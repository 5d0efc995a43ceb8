// Preloaded (LD_PRELOAD) into a program, makes it run many command lines, each in a child process:
// LibTorch, whose loading takes most of a short run, is loaded once. The program is started with
// the single argument MANY.
//
// Each line of standard input is a run: the file for its output, then its arguments, separated by
// tabs. Each is answered by a line with the status from waitpid.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using Main = int (*)(int, char**, char**);
static Main program_main;
static constexpr unsigned kMostSeconds = 120;

static int Serve(int argc, char** argv, char** environment) {
  if (argc != 2 || std::strcmp(argv[1], "MANY") != 0) return program_main(argc, argv, environment);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream text(line);
    for (std::string word; std::getline(text, word, '\t');) words.push_back(word);
    std::vector<char*> arguments{argv[0]};
    for (size_t i = 1; i < words.size(); ++i) arguments.push_back(words[i].data());
    arguments.push_back(nullptr);
    pid_t child = fork();
    if (child == 0) {
      int out = open(words[0].c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(open("/dev/null", O_RDONLY), 0), dup2(out, 1), dup2(out, 2);
      alarm(kMostSeconds);
      const int code =
          program_main(static_cast<int>(arguments.size()) - 1, arguments.data(), environment);
      std::cout.flush(), std::fflush(nullptr);
      _exit(code);  // LibTorch's destructors take longer than the run
    }
    int status = -1;
    waitpid(child, &status, 0);
    std::printf("%d\n", status);
    std::fflush(stdout);
  }
  return 0;
}

extern "C" int __libc_start_main(Main start, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*rtld_fini)(), void* stack_end) {
  program_main = start;
  unsetenv("LD_PRELOAD");
  auto real = reinterpret_cast<int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*)>(
      dlsym(RTLD_NEXT, "__libc_start_main"));
  return real(Serve, argc, argv, init, fini, rtld_fini, stack_end);
}
