#pragma once

#include <cstddef>

namespace thalweg::io {

// Reading a mapped page that its file lost (the file was truncated, its disk failed) raises SIGBUS, which ends the
// process. While an object exists, pages of its range that are lost read as zeros instead, and lost() reports it: a
// reader checks it before it trusts what it has read.
//
// The first object installs a handler of SIGBUS for the process; faults elsewhere go to the handler that was there
// before. Ranges beyond the first 1024 at once are not covered.
class MappingGuard {
 public:
  MappingGuard(const void* data, std::size_t bytes);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool lost() const;

 private:
  int entry_;  // -1: none
};

}  // namespace thalweg::io
