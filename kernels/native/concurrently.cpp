#include "concurrently.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace attnfuzz {
namespace {

struct Job {
  int64_t count;
  const std::function<void(int64_t)>& task;
  std::atomic<int64_t> next{0};

  bool open() const { return next.load(std::memory_order_relaxed) < count; }

  // An exception would leave the caller while other threads still use its job, so it ends the process, as on these.
  void work() noexcept {
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(index);
  }
};

// Threads share the work with the caller: if it finishes a job before they wake, it does not wait for them.
class Threads {
 public:
  Threads() : owner(getpid()) {
    // The threads that existed before handle the signals of the process.
    sigset_t asynchronous, before;
    sigfillset(&asynchronous);
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&asynchronous, signal);
    pthread_sigmask(SIG_SETMASK, &asynchronous, &before);
    const int threads = std::clamp<int>(std::thread::hardware_concurrency(), 2, 4) - 1;
    try {
      for (int i = 0; i < threads; ++i) std::thread(&Threads::serve, this).detach();
    } catch (const std::system_error&) {
      // With fewer threads, or none, the caller does the rest.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(Job& job) {
    const std::unique_lock<std::mutex> alone(callers_, std::try_to_lock);
    if (!alone.owns_lock()) return job.work();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
    }
    posted_.notify_all();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [this] { return active_ == 0; });
  }

  const pid_t owner;

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      posted_.wait(lock, [this] { return job_ && job_->open(); });
      Job& job = *job_;
      ++active_;
      lock.unlock();
      job.work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable posted_, done_;
  Job* job_ = nullptr;
  int active_ = 0;
};

// A forked child inherits the pool but not its threads. It abandons that pool, whose locks may be held forever.
Threads& pool() {
  static std::atomic<Threads*> current{nullptr};
  Threads* found = current.load(std::memory_order_acquire);
  if (found && found->owner == getpid()) return *found;
  auto* fresh = new Threads;
  if (!current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *found;
  return *fresh;
}

}  // namespace

void run_concurrently(int64_t count, const std::function<void(int64_t)>& task) {
  Job job{count, task};
  pool().run(job);
}

}  // namespace attnfuzz
