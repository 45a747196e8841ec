// Writes the native stack of a thread of this process, for a process that asks for it by a signal.
#pragma once

namespace attnfuzz {

// Whenever a thread gets `signal`, its id and its stack are appended to the file `descriptor`, with a line "end" at the
// end. Then the earlier handler is called, if there is one: the signal interrupts a system call for both. Does nothing
// without glibc's backtrace().
void install_stack_writer(int signal, int descriptor);

}  // namespace attnfuzz
