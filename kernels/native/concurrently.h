// Runs tasks on several threads at once.
#pragma once

#include <cstdint>
#include <functional>

namespace attnfuzz {

// Calls task(0) ... task(count - 1), each once, on the calling thread and on a few others, and returns when all are
// done. The threads are started at the first call in a process; a forked child starts its own.
void run_concurrently(int64_t count, const std::function<void(int64_t)>& task);

}  // namespace attnfuzz
