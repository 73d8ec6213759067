#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace thalweg::text {

// Checks a JSON object or list that arrives byte by byte. Strings may hold control characters, which models forget to
// escape.
class JsonScanner {
 public:
  // Takes the next byte, blanks between tokens included. false: this byte cannot follow, and was not taken.
  bool push(char c);

  bool done() const { return state_ == State::kDone; }  // the value is complete; no byte can follow
  bool in_string() const { return state_ == State::kString || state_ == State::kEscape || state_ == State::kHex; }
  std::size_t depth() const { return open_.size(); }  // of open objects and lists

 private:
  enum class State : std::uint8_t {
    kStart,       // { or [
    kFirstKey,    // behind {: a key or }
    kKey,         // behind a comma
    kColon,       // behind a key
    kFirstValue,  // behind [: a value or ]
    kValue,
    kString,
    kEscape,
    kHex,      // the digits of \uXXXX
    kLiteral,  // the rest of true, false or null
    kNumber,
    kNext,  // behind a value: a comma or the end
    kDone,
  };
  enum class Digits : std::uint8_t {
    kSign,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits
  };

  bool begin_value(char c);
  bool end_value(char c);  // a comma, } or ]
  bool push_string(char c);
  bool push_number(char c);
  bool is_complete_number() const;

  State state_ = State::kStart;
  std::vector<char> open_;    // { and [
  bool key_ = false;          // the string is a key
  int hex_digits_ = 0;        // that are missing
  std::string_view literal_;  // what is missing of it
  Digits digits_ = Digits::kSign;
};

}  // namespace thalweg::text
