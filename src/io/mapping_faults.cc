#include "io/mapping_faults.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace thalweg::io {
namespace {

enum class State : std::uint8_t { kFree, kTaken, kIntact, kLost };

struct Range {
  std::atomic<State> state{State::kFree};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
};
static_assert(std::atomic<State>::is_always_lock_free && std::atomic<std::uintptr_t>::is_always_lock_free,
              "a signal handler reads the ranges");

std::array<Range, 1024> g_ranges;
struct sigaction g_previous {};
std::uintptr_t g_page = 4096;

Range* range_of(std::uintptr_t address) {
  for (Range& range : g_ranges) {
    const State state = range.state.load();
    if (state != State::kIntact && state != State::kLost) continue;
    if (address >= range.begin.load() && address < range.end.load()) return &range;
  }
  return nullptr;
}

// Puts a page of zeros where the lost one was. mmap is a system call and nothing else, though POSIX does not list it
// among the functions that a handler may call.
bool replace_page(void* address) {
  std::byte* page = static_cast<std::byte*>(address) - reinterpret_cast<std::uintptr_t>(address) % g_page;
  return mmap(page, g_page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int before = errno;
  const bool fault = info->si_code > 0;  // and not sent by kill()
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Range* range = fault ? range_of(address) : nullptr;
  if (range != nullptr && replace_page(info->si_addr)) {
    range->state.store(State::kLost);
    errno = before;
    return;
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) return g_previous.sa_sigaction(signal, info, context);
  if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) return g_previous.sa_handler(signal);
  sigaction(signal, &g_previous, nullptr);
  if (!fault) raise(signal);  // a fault comes again by itself
}

void install() {
  g_page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &g_previous);
}

}  // namespace

MappingGuard::MappingGuard(const void* data, std::size_t bytes) : entry_(-1) {
  static std::once_flag once;
  std::call_once(once, install);
  for (std::size_t i = 0; i < g_ranges.size(); ++i) {
    State free = State::kFree;
    if (!g_ranges[i].state.compare_exchange_strong(free, State::kTaken)) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    g_ranges[i].begin.store(begin);
    g_ranges[i].end.store((begin + bytes + g_page - 1) / g_page * g_page);
    g_ranges[i].state.store(State::kIntact);
    entry_ = static_cast<int>(i);
    return;
  }
}

MappingGuard::~MappingGuard() {
  if (entry_ >= 0) g_ranges[static_cast<std::size_t>(entry_)].state.store(State::kFree);
}

bool MappingGuard::lost() const {
  return entry_ >= 0 && g_ranges[static_cast<std::size_t>(entry_)].state.load() == State::kLost;
}

}  // namespace thalweg::io
