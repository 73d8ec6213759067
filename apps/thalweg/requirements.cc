#include "requirements.h"

#include <fmt/core.h>

#include <algorithm>

namespace thalweg::app {

Requirements::Requirements(const Selection& selection) : selection_(selection) {
  for (const std::string& name : selection.operations) {
    if (std::none_of(required_.begin(), required_.end(), [&](const Required& r) { return r.operation == name; })) {
      required_.push_back({name, {}});
    }
  }
  if (required_.empty()) required_.push_back({});
}

void Requirements::count(std::string_view operation, const CaseCounts& counts) {
  for (Required& required : required_) {
    if (!required.operation.empty() && required.operation != operation) continue;
    required.counts.cases += counts.cases;
    required.counts.runs += counts.runs;
    if (required.counts.why_skipped.empty()) required.counts.why_skipped = counts.why_skipped;
  }
}

std::vector<std::string> Requirements::unmet(std::string_view did) const {
  std::vector<std::string> lines;
  for (const auto& [operation, counts] : required_) {
    if (counts.runs > 0) continue;
    const std::string what = operation.empty() ? "" : operation + ": ";
    if (counts.cases == 0 && selection_.case_regex.empty()) {
      lines.push_back(what + "the table has no case for it");
    } else if (counts.cases == 0) {
      lines.push_back(fmt::format("{}no case matches '{}'", what, selection_.case_regex));
    } else {
      const std::string where = selection_.backend == "all" ? "" : " on " + selection_.backend;
      lines.push_back(fmt::format("{}no case {}{}: {}", what, did, where, counts.why_skipped));
    }
  }
  return lines;
}

}  // namespace thalweg::app
