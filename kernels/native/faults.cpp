#include "faults.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include <atomic>
#include <initializer_list>

namespace attnfuzz {
namespace {

enum Access : uint32_t { kUnknown = 0, kRead = 1, kWrite = 2 };

FaultRecord* the_record = nullptr;
std::atomic<bool> recorded{false};

// A handler must not need the stack of a thread that has overflowed it.
alignas(16) char alternate_stack[64 * 1024];

#if defined(__x86_64__)

// Intel SDM volume 3, 4.7: trap 14 is the page fault, and bit 1 of its error code is set for a write.
Access access_of(const ucontext_t& context) {
  if (context.uc_mcontext.gregs[REG_TRAPNO] != 14) return kUnknown;
  return context.uc_mcontext.gregs[REG_ERR] & 2 ? kWrite : kRead;
}

#elif defined(__aarch64__)

// Arm ARM, ESR_EL1: exception class 0x24 is a data abort, and bit 6 (WnR) is set for a write. Linux passes it in a
// record of the signal frame (asm/sigcontext.h).
Access access_of(const ucontext_t& context) {
  struct Header {
    uint32_t magic, size;
  };
  constexpr uint32_t kEsrMagic = 0x45535201;
  const auto* at = reinterpret_cast<const char*>(context.uc_mcontext.__reserved);
  for (;;) {
    Header header;
    memcpy(&header, at, sizeof header);
    if (header.magic == 0 || header.size == 0) return kUnknown;
    if (header.magic == kEsrMagic) {
      uint64_t esr;
      memcpy(&esr, at + sizeof header, sizeof esr);
      if ((esr >> 26 & 0x3f) != 0x24) return kUnknown;
      return esr & 1u << 6 ? kWrite : kRead;
    }
    at += header.size;
  }
}

#else

Access access_of(const ucontext_t&) { return kUnknown; }

#endif

void record_fault(int signal, siginfo_t* info, void* context) {
  // Threads can fault at the same time: only the first one is recorded, and the process lives until it is.
  if (recorded.exchange(true)) {
    const timespec millisecond = {0, 1'000'000};
    for (int waited = 0; waited < 1000 && !__atomic_load_n(&the_record->done, __ATOMIC_ACQUIRE); ++waited)
      nanosleep(&millisecond, nullptr);
  } else {
    const bool has_address = signal != SIGABRT && info->si_code > 0 && info->si_code != SI_KERNEL;
    const bool memory = signal == SIGSEGV || signal == SIGBUS;
    the_record->signal = static_cast<uint32_t>(signal);
    the_record->code = info->si_code;
    the_record->address = has_address ? reinterpret_cast<uint64_t>(info->si_addr) : 0;
    the_record->access = memory ? access_of(*static_cast<ucontext_t*>(context)) : kUnknown;
    __atomic_store_n(&the_record->done, 1u, __ATOMIC_RELEASE);
  }
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  raise(signal);
}

}  // namespace

void install_fault_recorder(FaultRecord* record) {
  the_record = record;
  recorded = false;
  stack_t stack;
  memset(&stack, 0, sizeof stack);
  stack.ss_sp = alternate_stack;
  stack.ss_size = sizeof alternate_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = record_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
}

}  // namespace attnfuzz
