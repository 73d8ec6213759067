#pragma once

#include <string>

namespace thalweg::app {

// Messages of a conversation. At a terminal they are edited with readline, with the history of earlier ones; text that
// is pasted in several lines stays one message. From a pipe each line is one. A \ at the end of a line continues it.
class MessageReader {
 public:
  MessageReader();
  ~MessageReader();
  MessageReader(const MessageReader&) = delete;
  MessageReader& operator=(const MessageReader&) = delete;

  bool is_terminal() const { return terminal_; }

  // Returns false at the end of the input, and when a signal asks the program to end. Ctrl-C drops what was typed.
  // Throws for a message of more than kMostBytes.
  bool read(std::string& message);

  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

 private:
  enum class Line { kRead, kEnd, kInterrupted };

  Line read_line(const char* prompt, std::string& line);
  void save_history();

  bool terminal_;
  bool edits_;           // with readline
  std::string input_;    // read, and not yet part of a line; without readline
  std::string history_;  // file; empty: none
};

}  // namespace thalweg::app
