#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "decode/lookup.h"
#include "thalweg/model.h"

namespace thalweg::decode {

// What rounds of a model cost, measured: a round runs one token of each of some sequences, and drafts of some of them.
// What another process makes slow counts for little.
class RoundCosts {
 public:
  // `settled`: no sequence had drafts in the round before, whose replay would count as this one's.
  void add(std::int64_t sequences, std::int64_t drafts, double seconds, bool settled = true);
  // What it took to make drafts.
  void add_making(std::int64_t drafts, double seconds);
  // Seconds of a round without drafts; 0: not measured yet.
  double plain(std::int64_t sequences) const;
  // Whether the next round is to have no drafts, for plain().
  bool due(std::int64_t sequences) const;
  // Seconds that so many drafts of each sequence add to a round and take to make, a sequence's share; 0: not measured
  // yet. The first draft may add more than another.
  double drafts(std::int64_t count, std::int64_t sequences) const;

 private:
  struct Plain {
    double seconds = 0;
    int measured = 0;
    int since = 0;  // rounds with drafts
  };
  // Seconds that so many drafts in all add to a round.
  double added(double drafts) const;

  std::map<std::int64_t, Plain> plain_;
  // Of rounds with drafts, older ones counting less: the number of them, and means.
  double rounds_ = 0;
  double drafts_ = 0;
  double added_ = 0;
  double squares_ = 0;   // of drafts
  double products_ = 0;  // of drafts and what they added
  double making_ = 0;    // of one draft
};

// Proposes the drafts of one sequence, and learns from what becomes of them.
class Drafter {
 public:
  // `mode` is not kOff. At most `most` drafts in a round. `tokens`: the sequence so far.
  Drafter(DraftMode mode, int most, std::span<const std::int32_t> tokens);

  // Tokens that the sequence has been given.
  void add(std::span<const std::int32_t> tokens);
  // How many drafts the next round is to have, at most `room`; `sequences` are in it. `has_layer`: the model's MTP
  // layer can make them, and does if by_layer() afterwards.
  std::int64_t wanted(std::int64_t room, std::int64_t sequences, const RoundCosts& costs, bool has_layer = false);
  bool by_layer() const { return by_layer_; }
  // Those of the next round: at most `most` that the text so far gives, or ones from elsewhere.
  void look_up(std::int64_t most) { lookup_.propose(static_cast<std::size_t>(most), drafts_); }
  void take(std::vector<std::int32_t> drafts) { drafts_ = std::move(drafts); }
  // Valid until they are others.
  std::span<const std::int32_t> drafts() const { return drafts_; }
  // What became of them: the first `accepted` were right.
  void judge(std::int64_t accepted, std::int64_t sequences, const RoundCosts& costs);

 private:
  // Of drafts of one source; older ones count less.
  struct Acceptance {
    double right = 1;
    double looked = 2;  // at, in order, up to the first that was wrong
    double rate() const { return right / looked; }
    void add(double right_ones, double looked_at);
  };

  // Whether the text so far foretells the next tokens as well as the layer does.
  bool prefers_lookup();
  // How many drafts gain time, by measured acceptance and costs, or may be tried.
  std::int64_t worthwhile(std::int64_t sequences, const RoundCosts& costs) const;

  DraftMode mode_;
  std::int64_t most_;
  std::int64_t limit_;  // unless kAuto: grows while all drafts are right
  Lookup lookup_;
  std::vector<std::int32_t> drafts_;
  bool by_layer_ = false;
  Acceptance of_lookup_;
  Acceptance of_layer_;
  std::vector<std::int32_t> guess_;  // what the text so far would have given for a round without its drafts
  double spent_ = 0;                 // kAuto: seconds of rounds
  double gained_ = 0;                // and those that the same tokens would have taken without drafts
};

}  // namespace thalweg::decode
