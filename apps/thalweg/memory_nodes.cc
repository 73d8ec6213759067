#include "memory_nodes.h"

#include <array>
#include <bitset>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <string>
#include <system_error>

#include "thalweg/error.h"

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace thalweg::app {

int interleave_memory() {
  const auto fail = [](const std::string& given) {
    throw Error("thalweg", "--numa", "off, or a Linux that knows memory nodes", given);
  };
#ifdef __linux__
  // The C library has no functions for these two calls.
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / kWordBits> nodes{};
  constexpr unsigned long kMostNodes = 1024;
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMostNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0 ||
      syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, nodes.data(), kMostNodes) != 0) {
    fail("interleave, to which the system says: " + std::generic_category().message(errno));
  }
  int count = 0;
  for (const unsigned long word : nodes) count += static_cast<int>(std::bitset<kWordBits>(word).count());
  return count;
#else
  fail("interleave");
  return 0;
#endif
}

}  // namespace thalweg::app
