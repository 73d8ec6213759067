#pragma once

// Text from a hybrid model's file: Qwen3-Next, Qwen3.5 (dense and MoE) and Qwen3.6, from GGUF (split files too) or from
// a Hugging Face directory. Files are mapped, not copied. If a file is truncated while in use, the run that reads it
// throws Error: the library handles SIGBUS within its mappings and forwards other faults to the handler that was there
// before.
//
//   Model model = Model::load("model.gguf");
//   Sequence sequence = model.start();
//   model.generate(sequence, model.tokenize("Where is the ball?"), {}, 64, [](std::string_view bytes) {
//     std::cout << bytes << std::flush;
//     return true;
//   });
//
// Errors are thalweg::Error and name the file's key or tensor. A Model and its Sequences are used by one thread at a
// time, except for info() and the text functions, which any thread may call. For one machine and instruction set,
// results do not depend on the number of threads, bit for bit, and equal calls give equal bits.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/api.h"
#include "thalweg/chat.h"
#include "thalweg/device.h"
#include "thalweg/dtype.h"
#include "thalweg/ranks.h"
#include "thalweg/sampling.h"

namespace thalweg::engine {
class ModelSlots;
}

THALWEG_API_BEGIN
namespace thalweg {

// Where drafts of the next tokens come from, which one run of the model verifies together. Drafts do not change the
// tokens, not even drawn ones: a draft is accepted if it is the token that would be chosen at its position.
enum class DraftMode : std::uint8_t {
  kOff,
  kLookup,  // the text so far: what followed the longest earlier match of its last tokens
  kAuto,    // the MTP layer or else the text; as many as pay off by measured acceptance and cost, possibly none
  kMtp,     // the model's MTP layer (multi-token prediction)
};

struct ModelOptions {
  std::optional<Device> device;  // none: a GPU that the model fits on, else the CPU
  int threads = 0;               // 0: every hardware thread
  ThreadPool pool = {};          // the caller's; without a `run` the library's
  std::int64_t context = 0;      // tokens of a sequence at most; 0: as the file says, but at most 32768
  int sequences = 1;             // sequences alive at once, at most
  int prefill_chunk = 0;         // tokens of a prefill that run together; 0: 512 on a CPU, 8192 on a GPU
  bool exact = false;            // MatmulPrecision::kExact instead of kFast; on a GPU f32 activations too
  // On a GPU too a sequence's bits do not depend on the sequences that run with it, as they never do on a CPU: slower.
  bool batch_invariant = false;
  // Of keys and values: kF16, kBF16, kF32, or kQ8_0 for a model whose attention heads are a multiple of 32 wide; none:
  // kF32 if exact, else kF16.
  std::optional<DType> kv_dtype;
  DType state_dtype = DType::kF32;  // of the recurrent states: kF32 or kBF16
  // All but kOff need one process, a CPU or CUDA, and F32 states; where that is not so, kAuto is kOff.
  DraftMode draft = DraftMode::kOff;
  int draft_max = 8;  // drafts of a sequence in one run, at most; 1 to 64
  // One of several processes that run the model together (thalweg/ranks.h); none, or one of one: this process alone.
  // All give the same options except for `device`'s index, `threads`, `pool` and `progress`. They run on the CPU, or
  // each on its own CUDA device: without `device`, on that of Ranks::local_rank() where every rank has one.
  std::shared_ptr<Ranks> ranks = {};
  RankSplit rank_split = RankSplit::kTensor;  // what each of them has; the same on all
  bool prefetch = true;                       // read the whole file at load; otherwise pages are loaded when first used
  std::function<void(double done)> progress;  // called with the fraction done while loading, and with 1 at the end
};

// Called now and then during long work, which stops when it returns false.
using ShouldContinue = std::function<bool()>;

enum class LayerKind : std::uint8_t { kGatedDelta, kAttention };

struct TensorInfo {
  std::string name;                 // as in the file
  std::string type;                 // as the file's format spells it: "Q4_K"
  std::vector<std::int64_t> shape;  // innermost last
  std::uint64_t bytes = 0;
  bool used = false;           // false: belongs neither to the trunk nor to the MTP layer (vision)
  bool mtp = false;            // of the MTP layer, which runs for drafts alone
  std::string operation;       // of used matrices: "linear", "moe_ffn" or "embedding"
  std::string decode_kernel;   // that runs it for one token
  std::string prefill_kernel;  // and for a chunk of a prefill
};

// What the file says.
struct ModelInfo {
  std::string path;
  std::string format;        // "GGUF" or "safetensors"
  std::string architecture;  // "qwen3next", "qwen35" or "qwen35moe"
  std::string name;          // as the file calls itself; may be empty
  std::vector<LayerKind> layers;
  int mtp_layers = 0;  // 1: it can make drafts (ModelOptions::draft); further ones are ignored
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  // that the model was trained for; 0 if the file does not say
  int attention_heads = 0;
  int attention_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;
  double rope_theta = 0;
  std::string rope_scaling;  // "linear" or "yarn"; empty: none
  double rope_factor = 1;    // of the context, by the scaling
  double norm_eps = 0;
  int key_heads = 0;  // of the gated delta rule
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 0;
  std::string head_map;  // "grouped" or "tiled"
  int experts = 0;       // 0: dense
  int experts_used = 0;
  std::int64_t expert_hidden = 0;
  std::int64_t shared_hidden = 0;
  std::int64_t dense_hidden = 0;
  bool tied_head = false;
  bool has_tokenizer = false;
  bool has_chat_template = false;  // without one the model was not made for conversations
  std::vector<std::int32_t> end_tokens;
  std::uint64_t parameters = 0;         // of the trunk
  std::uint64_t weight_bytes = 0;       // of the trunk, as stored
  std::uint64_t decode_bytes = 0;       // of weights that one decode step of one sequence reads
  std::uint64_t copied_bytes = 0;       // of weights that were copied at load
  std::uint64_t mtp_bytes = 0;          // of the MTP layer's weights, as stored
  std::uint64_t mtp_token_bytes = 0;    // of its keys and values, per token, if it is in use
  std::uint64_t state_bytes = 0;        // of a sequence, without its key and value cache
  DType state_dtype = DType::kF32;      // of its recurrent states
  std::uint64_t cache_token_bytes = 0;  // of the key and value cache, per token; with the MTP layer's, if in use
  DType kv_dtype = DType::kF16;         // of its numbers
  std::string device;                   // that it runs on: "cpu", "cuda:0 (NVIDIA H200)"
  std::string device_reason;            // why not a GPU, where the options named no device and a GPU is present
  std::uint64_t device_bytes = 0;       // reserved on the GPU: weights, states and caches of all sequences, steps
  std::vector<TensorInfo> tensors;
};

// The time that the calls of one operation by one kernel take in a step.
struct OperationTime {
  std::string operation;
  std::string kernel;
  std::int64_t calls = 0;
  double seconds = 0;  // of all of them, each timed by itself
};

enum class StopReason : std::uint8_t {
  kEndToken,  // the model ended the text
  kLength,    // max_tokens
  kContext,   // the sequence is full
  kCaller,    // a callback returned false
};

struct Generated {
  std::vector<std::int32_t> tokens;  // without the end token
  StopReason reason = StopReason::kLength;
  std::int64_t prompt_tokens = 0;
  double prefill_seconds = 0;
  std::int64_t steps = 0;  // decode steps, one per token
  double decode_seconds = 0;
  std::int64_t runs = 0;             // of the model, for these tokens
  std::int64_t drafts = 0;           // tokens that were proposed
  std::int64_t drafts_accepted = 0;  // and were right
};

// Counts of decoding with drafts since the model was loaded.
struct DraftCounts {
  std::int64_t runs = 0;  // of the model
  std::int64_t drafts = 0;
  std::int64_t accepted = 0;  // of the drafts
};

// A text and the model's state after it. Occupies one of the model's slots until it is destroyed, and keeps the model
// alive. When an error interrupts a run of tokens (memory runs out, a callback throws), the state of its sequences no
// longer matches their tokens: every later call for them but clear() and restore() throws.
class Sequence {
 public:
  Sequence();  // of no model: may only be assigned and destroyed
  ~Sequence();
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;

  // The tokens so far, all of them in the state.
  std::span<const std::int32_t> tokens() const;

  // Of the next token, [vocabulary]; empty before the first token. Valid until the sequence changes.
  std::span<const float> logits() const;

  // Removes all tokens.
  void clear();

  // Writes the whole state to a temporary file and renames it to `path`. A restored sequence gives bit-identical
  // results with the same options on the same machine.
  void save(const std::string& path) const;

  // Throws Error, and leaves the sequence unchanged, for a file that is damaged or of another model.
  void restore(const std::string& path);

  struct THALWEG_HIDDEN Impl;

 private:
  friend class Model;
  friend class engine::ModelSlots;
  std::unique_ptr<Impl> impl_;
};

// New tokens of one sequence of a batch.
struct SequenceInput {
  Sequence* sequence = nullptr;
  std::span<const std::int32_t> tokens;
};

class Model {
 public:
  // From a .gguf file (any file of a split model) or a directory with config.json and safetensors.
  static Model load(const std::string& path, const ModelOptions& options = {});

  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;
  ~Model();

  const ModelInfo& info() const;
  std::int64_t context() const;  // most tokens of a sequence
  int threads() const;
  int prefill_chunk() const;  // tokens of a prefill that run together

  // Text functions. They throw Error for a model without a tokenizer, which runs on token ids. Special tokens such as
  // <|im_end|> are recognized in `text` if `parse_special`.
  std::vector<std::int32_t> tokenize(std::string_view text, bool parse_special = true) const;
  std::string token_bytes(std::int32_t token) const;  // may be an incomplete character; special tokens as text
  std::string detokenize(std::span<const std::int32_t> tokens) const;

  // The chat format of the model's family: the prompt for the answer to a conversation, and for the next question after
  // an answer of generate(). Special tokens in contents are plain text. They throw Error for a model without a known
  // format, for an order of messages that the format does not have, and for a mode that the family lacks.
  ChatPrompt chat_prompt(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  std::vector<std::int32_t> chat_continuation(std::string_view question, std::optional<bool> think = {}) const;
  AnswerParser answer_parser(bool thinking, const ChatOptions& options = {}) const;  // thinking: of the ChatPrompt
  ToolCallFormat tool_call_format() const;
  std::string chat_format() const;  // the format's name: "Qwen3.5"
  // Whether the format has answers that begin with reasoning (true), or without it (false).
  bool can_answer(bool thinking) const;
  bool is_end_token(std::int32_t token) const;

  // An empty sequence; throws Error if `options.sequences` are alive.
  Sequence start();

  // Runs new tokens through the model, in chunks; sequences of a batch may have different numbers of them, none
  // included. A batch with one token each takes the decode step. Throws before anything changes if a token is not in
  // the vocabulary or a sequence would be longer than context(). Between chunks `should_continue` is called; when it
  // returns false, the sequences are restored to their state before the call, which returns false too.
  bool prefill(std::span<const SequenceInput> batch, const ShouldContinue& should_continue = {});
  bool prefill(Sequence& sequence, std::span<const std::int32_t> tokens, const ShouldContinue& should_continue = {});

  // One token for each sequence of the batch.
  void step(Sequence& sequence, std::int32_t token);
  void step(std::span<Sequence* const> sequences, std::span<const std::int32_t> tokens);

  // As prefill(), and calls `on_logits` with the logits [vocabulary] after each of the tokens, in order.
  void prefill_each(Sequence& sequence, std::span<const std::int32_t> tokens,
                    const std::function<void(std::int64_t index, std::span<const float> logits)>& on_logits);

  // ln p(tokens[i + 1] | everything up to tokens[i]) for each i but the last: the measure behind perplexity.
  std::vector<double> score(Sequence& sequence, std::span<const std::int32_t> tokens);

  // The token that `sampling` chooses after the sequence's tokens.
  std::int32_t sample(const Sequence& sequence, const Sampling& sampling) const;

  // Decodes up to `max_tokens` tokens of each sequence of a batch together: chooses a token by the sequence's own
  // `sampling`, reports it and runs it, step after step. `on_tokens`, if given, is called with the tokens of a step in
  // the order of the sequences, -1 for those that have ended, and returns false to stop after them; `on_logits`, before
  // it, with the logits [vocabulary] that each token was chosen from. A batch of one sequence has drafts
  // (ModelOptions::draft); several sequences have them in an Engine. End tokens are neither reported nor run, unless
  // `ignore_end`, with which they are tokens like others. Returns why each sequence ended. A GPU is kept busy: the next
  // step is launched before the tokens that it runs are known here.
  std::vector<StopReason> decode(std::span<Sequence* const> sequences, std::span<const Sampling> sampling,
                                 std::int64_t max_tokens,
                                 const std::function<bool(std::span<const std::int32_t> tokens)>& on_tokens = {},
                                 const std::function<void(std::size_t sequence, std::int32_t token,
                                                          std::span<const float> logits)>& on_logits = {},
                                 bool ignore_end = false);

  // One round with the caller's own drafts, for several sequences: tokens[0] of each is its next token, the others are
  // drafts, at most draft_max. All run together, and drafts are accepted up to the first that sampling would not choose
  // at its position. Returns how many tokens of each sequence were kept; the sequence then has these, and the logits
  // after them. `accept`, if given, judges the draft instead, while the sequence's tokens are those before it. Throws
  // Error where ModelOptions::draft is off or the device has no drafts; a GPU takes round_tokens() tokens at most.
  using AcceptDraft = std::function<bool(std::size_t sequence, std::int32_t draft)>;
  std::vector<std::int64_t> verify(std::span<const SequenceInput> batch, std::span<const Sampling> sampling,
                                   const AcceptDraft& accept = {});
  std::int64_t round_tokens() const;
  DraftCounts draft_counts() const;

  // Prefills the prompt (may be empty if the sequence has tokens), then up to `max_tokens` tokens, each of which is
  // run through the model. `on_bytes`, if given, is called with the text in UTF-8, in whole characters, and returns
  // false to stop; without it no tokenizer is needed. The end token is neither reported nor run. `should_continue` is
  // called as by prefill(), and before each new token; when it stops the decoding, the tokens so far are kept.
  // `on_token` is called with each token, `on_logits` before it with the logits [vocabulary] that it was chosen from:
  // the model's own, before penalty and temperature.
  Generated generate(Sequence& sequence, std::span<const std::int32_t> prompt, const Sampling& sampling,
                     std::int64_t max_tokens, const std::function<bool(std::string_view bytes)>& on_bytes = {},
                     const ShouldContinue& should_continue = {},
                     const std::function<void(std::int32_t token)>& on_token = {},
                     const std::function<void(std::int32_t token, std::span<const float> logits)>& on_logits = {});

  // The operations of a step over `tokens` tokens, `tokens_each` of each sequence, timed one by one, in the order in
  // which they first run. Sequences that exist lose their contents.
  std::vector<OperationTime> profile(std::int64_t tokens, std::int64_t tokens_each, std::int64_t context);

  // On a rank above 0, instead of every other function except info() and the text functions: does what rank 0 does,
  // until rank 0's Model is destroyed. Throws Error on every remaining rank if a rank is lost.
  void follow();

  struct THALWEG_HIDDEN Impl;

 private:
  friend class engine::ModelSlots;
  explicit Model(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace thalweg
THALWEG_API_END
