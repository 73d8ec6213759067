#include "output_file.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "io/atomic_file.h"
#include "io/paths.h"

namespace thalweg::app {

void add_force(CLI::App& command, bool& force) {
  command.add_flag("--force", force, "Replace the file to be written, if it is there");
}

void check_not_read(const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (io::same_file(path, input)) {
      throw std::runtime_error(path + " is a file that this run reads, and would be lost: name another file to write");
    }
  }
}

void check_output(const std::string& path, bool force) {
  namespace fs = std::filesystem;
  const std::string target = io::resolve_links(path);
  if (io::is_open_file(target)) return;
  std::error_code none;
  const fs::file_status status = fs::status(target, none);
  if (!force && fs::is_regular_file(status)) {
    throw std::runtime_error(path + " is there already: name another file, or replace it with --force");
  }
  // Opening a pipe would wait for its reader.
  if (!fs::exists(status) || fs::is_regular_file(status) || fs::is_directory(status)) io::AtomicFile{path};
}

void write_text(const std::string& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace thalweg::app
