#pragma once

#include <string>
#include <vector>

#include "io/file_lock.h"
#include "thalweg/model.h"

namespace thalweg::app {

// The file of `--session`, kept from other processes while the object exists. A file that is not a session of the
// model, or that cannot be read or written, is refused before anything is generated, and never replaced.
class SessionFile {
 public:
  // `inputs`: files of the run, none of which can be the session. `anew`: begin without what the file holds.
  SessionFile(std::string path, const std::vector<std::string>& inputs, bool anew);

  // Returns whether the sequence has tokens now.
  bool restore(Sequence& sequence) const;

  // Begun anew, the file that was there is kept under the first free name of FILE.1, FILE.2, ...; returns that name, or
  // "" if there was none.
  std::string save(const Sequence& sequence);

 private:
  std::string path_;
  bool anew_;
  io::FileLock lock_;
};

}  // namespace thalweg::app
