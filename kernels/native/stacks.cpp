#include "stacks.h"

#if __has_include(<execinfo.h>)

#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace attnfuzz {
namespace {

constexpr int kMostFrames = 64;
constexpr int kSignals = 65;
int the_descriptor = -1;
struct sigaction earlier[kSignals];

void say(const char* text) {
  // Nothing can be done about an error here.
  if (write(the_descriptor, text, strlen(text)) < 0) return;
}

void write_stack(int signal) {
  const int before = errno;
  char head[64];
  snprintf(head, sizeof head, "thread %ld\n", static_cast<long>(syscall(SYS_gettid)));
  say(head);
  void* frames[kMostFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMostFrames), the_descriptor);
  say("end\n");
  errno = before;
  const auto handler = earlier[signal].sa_handler;
  if (handler != SIG_DFL && handler != SIG_IGN && handler != write_stack) handler(signal);
}

}  // namespace

void install_stack_writer(int signal, int descriptor) {
  the_descriptor = descriptor;
  // The first call loads a library, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &earlier[signal]);
}

}  // namespace attnfuzz

#else

namespace attnfuzz {

void install_stack_writer(int, int) {}

}  // namespace attnfuzz

#endif
