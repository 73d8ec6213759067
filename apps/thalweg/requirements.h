#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"

namespace thalweg::app {

// What the cases of one operation did on one backend.
struct CaseCounts {
  std::size_t cases = 0;
  std::size_t runs = 0;
  std::string why_skipped;  // reason of the first case without a run
};

// What the command line requires to run at least once: each operation that it names, or the selection as a whole; on
// the backend that it names, or on any of them all.
class Requirements {
 public:
  explicit Requirements(const Selection& selection);

  void count(std::string_view operation, const CaseCounts& counts);

  // A line for each requirement that no run meets: "add: no case `did` on cuda: <reason>".
  std::vector<std::string> unmet(std::string_view did) const;

 private:
  struct Required {
    std::string operation;  // empty: any of the selected ones
    CaseCounts counts;
  };
  const Selection& selection_;
  std::vector<Required> required_;
};

}  // namespace thalweg::app
