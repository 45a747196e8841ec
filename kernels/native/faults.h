// Notes what kills the process, where somebody who outlives it can read it.
#pragma once

#include <cstdint>

namespace attnfuzz {

// Mirrors FAULT_RECORD in fault_recorder.py.
struct FaultRecord {
  uint32_t signal;
  int32_t code;      // si_code
  uint64_t address;  // of the access; of the instruction for SIGILL and SIGFPE. 0 if it was not canonical (SI_KERNEL)
  uint32_t access;   // 0 unknown, 1 read, 2 write
  uint32_t done;     // 1 once all else is written
};

// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT from now on: the record is written, and the process dies of its
// signal as it would have. `record` must stay mapped.
void install_fault_recorder(FaultRecord* record);

}  // namespace attnfuzz
