#include "text/json_scanner.h"

namespace thalweg::text {
namespace {

constexpr std::size_t kMaxDepth = 256;  // as parse_json: what is passed on can be given back in a conversation

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonScanner::push(char c) {
  if (in_string()) return push_string(c);
  if (state_ == State::kLiteral) {
    if (c != literal_.front()) return false;
    literal_.remove_prefix(1);
    if (literal_.empty()) state_ = State::kNext;
    return true;
  }
  if (state_ == State::kNumber) {
    if (push_number(c)) return true;
    if (!is_complete_number() || !(is_blank(c) || end_value(c))) return false;
    if (is_blank(c)) state_ = State::kNext;
    return true;
  }
  if (state_ == State::kDone) return false;
  if (is_blank(c)) return true;
  switch (state_) {
    case State::kStart:
      return (c == '{' || c == '[') && begin_value(c);
    case State::kFirstKey:
    case State::kKey:
      if (c == '}' && state_ == State::kFirstKey) return end_value(c);
      if (c != '"') return false;
      key_ = true;
      state_ = State::kString;
      return true;
    case State::kColon:
      if (c != ':') return false;
      state_ = State::kValue;
      return true;
    case State::kFirstValue:
      return c == ']' ? end_value(c) : begin_value(c);
    case State::kValue:
      return begin_value(c);
    case State::kNext:
      return end_value(c);
    default:
      return false;
  }
}

bool JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() == kMaxDepth) return false;
    open_.push_back(c);
    state_ = c == '{' ? State::kFirstKey : State::kFirstValue;
    return true;
  }
  if (c == '"') {
    key_ = false;
    state_ = State::kString;
    return true;
  }
  if (c == '-' || is_digit(c)) {
    digits_ = c == '-' ? Digits::kSign : c == '0' ? Digits::kZero : Digits::kInteger;
    state_ = State::kNumber;
    return true;
  }
  if (c != 't' && c != 'f' && c != 'n') return false;
  literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
  state_ = State::kLiteral;
  return true;
}

bool JsonScanner::end_value(char c) {
  const bool object = open_.back() == '{';
  if (c == ',') {
    state_ = object ? State::kKey : State::kValue;
    return true;
  }
  if (c != (object ? '}' : ']')) return false;
  open_.pop_back();
  state_ = open_.empty() ? State::kDone : State::kNext;
  return true;
}

bool JsonScanner::push_string(char c) {
  switch (state_) {
    case State::kEscape:
      if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) return false;
      hex_digits_ = 4;
      state_ = c == 'u' ? State::kHex : State::kString;
      return true;
    case State::kHex:
      if (!is_hex(c)) return false;
      if (--hex_digits_ == 0) state_ = State::kString;
      return true;
    default:
      if (c == '"') state_ = key_ ? State::kColon : State::kNext;
      if (c == '\\') state_ = State::kEscape;
      return true;
  }
}

bool JsonScanner::is_complete_number() const {
  return digits_ == Digits::kZero || digits_ == Digits::kInteger || digits_ == Digits::kFraction ||
         digits_ == Digits::kExponentDigits;
}

// false: the byte does not belong to the number.
bool JsonScanner::push_number(char c) {
  const auto move_to = [&](Digits next) {
    digits_ = next;
    return true;
  };
  if (is_digit(c)) {
    switch (digits_) {
      case Digits::kSign:
        return move_to(c == '0' ? Digits::kZero : Digits::kInteger);
      case Digits::kZero:
        return false;
      case Digits::kPoint:
        return move_to(Digits::kFraction);
      case Digits::kExponent:
      case Digits::kExponentSign:
        return move_to(Digits::kExponentDigits);
      default:
        return true;
    }
  }
  if (c == '.') return (digits_ == Digits::kZero || digits_ == Digits::kInteger) && move_to(Digits::kPoint);
  if (c == 'e' || c == 'E') {
    return is_complete_number() && digits_ != Digits::kExponentDigits && move_to(Digits::kExponent);
  }
  return (c == '+' || c == '-') && digits_ == Digits::kExponent && move_to(Digits::kExponentSign);
}

}  // namespace thalweg::text
