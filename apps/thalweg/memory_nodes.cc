#include "memory_nodes.h"

#include <array>
#include <cerrno>
#include <climits>
#include <string>
#include <system_error>

#include "thalweg/error.h"

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace thalweg::app {

void interleave_memory() {
  const auto fail = [](const std::string& given) {
    throw Error("thalweg", "--numa", "off, or a Linux that knows memory nodes", given);
  };
#ifdef __linux__
  // The C library has no functions for these two calls.
  constexpr unsigned long kMostNodes = 1024;
  std::array<unsigned long, kMostNodes / (sizeof(unsigned long) * CHAR_BIT)> nodes{};
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMostNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0 ||
      syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, nodes.data(), kMostNodes) != 0) {
    fail("interleave, to which the system says: " + std::generic_category().message(errno));
  }
#else
  fail("interleave");
#endif
}

}  // namespace thalweg::app
