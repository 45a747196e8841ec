// Records the fatal fault of this process for a process that outlives it.
#pragma once

#include <cstdint>

namespace attnfuzz {

// Mirrors FAULT_RECORD in fault_recorder.py.
struct FaultRecord {
  uint32_t signal;
  int32_t code;      // si_code
  uint64_t address;  // of the access; of the instruction for SIGILL and SIGFPE. 0 if it was not canonical (SI_KERNEL)
  uint32_t access;   // 0 unknown, 1 read, 2 write
  uint32_t done;     // 1 once everything else is written
};

// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT from now on: writes the record, then lets the process die of its
// signal. `record` must stay mapped.
void install_fault_recorder(FaultRecord* record);

}  // namespace attnfuzz
