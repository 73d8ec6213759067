#include <fmt/core.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/gguf.h"
#include "io/printable.h"
#include "io/safetensors.h"
#include "model_commands.h"
#include "model_options.h"
#include "streams.h"
#include "thalweg/error.h"

namespace thalweg::app {
namespace {

struct Options {
  std::optional<std::string> given;
  std::string path;
  bool json = false;
  StateTypes types;
  int ranks = 1;
  RankSplit rank_split = RankSplit::kTensor;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

std::string layers_text(const std::vector<LayerKind>& layers) {
  std::string text;
  for (LayerKind kind : layers) text += kind == LayerKind::kGatedDelta ? 'd' : 'A';
  return text;
}

// The tensors of a file whose model cannot be run.
std::vector<TensorInfo> list_tensors(const std::string& path) {
  std::vector<TensorInfo> list;
  const auto add = [&](const auto& tensor, std::string type) {
    TensorInfo info;
    info.name = tensor.name;
    info.type = std::move(type);
    info.shape = tensor.shape;
    info.bytes = tensor.bytes;
    list.push_back(std::move(info));
  };
  if (std::filesystem::is_directory(path) || path.ends_with(".safetensors")) {
    const io::SafetensorsFile file(path);
    for (const io::SafetensorsTensor& tensor : file.tensors()) add(tensor, tensor.type);
  } else {
    const io::GgufFile file(path);
    for (const io::GgufTensor& tensor : file.tensors()) add(tensor, tensor.type.name);
  }
  return list;
}

std::string operation_text(const TensorInfo& tensor) {
  if (!tensor.used) return "not used";
  return tensor.mtp && !tensor.operation.empty() ? tensor.operation + " (MTP)" : tensor.operation;
}

void print_tensors(const std::vector<TensorInfo>& tensors) {
  std::size_t name_width = 6;
  std::size_t shape_width = 5;
  for (const TensorInfo& tensor : tensors) {
    name_width = std::max(name_width, io::printable(tensor.name).size());
    shape_width = std::max(shape_width, shape_text(tensor.shape).size());
  }
  print("{:<{}}  {:<7} {:<{}} {:>10}  {:<13} {:<14} {}\n", "tensor", name_width, "type", "shape", shape_width, "size",
        "operation", "decode", "prefill");
  for (const TensorInfo& tensor : tensors) {
    print("{:<{}}  {:<7} {:<{}} {:>10}  {:<13} {:<14} {}\n", io::printable(tensor.name), name_width, tensor.type,
          shape_text(tensor.shape), shape_width, format_bytes(tensor.bytes), operation_text(tensor),
          tensor.decode_kernel, tensor.prefill_kernel);
  }
}

void print_types(const std::vector<TensorInfo>& tensors) {
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> types;
  for (const TensorInfo& tensor : tensors) {
    auto& [count, bytes] = types[tensor.type];
    ++count;
    bytes += tensor.bytes;
  }
  for (const auto& [type, sums] : types) {
    print("{:<18}{} in {} tensors\n", type, format_bytes(sums.second), sums.first);
  }
}

void print_info(const ModelInfo& info) {
  const auto row = [](const char* what, const std::string& value) { print("{:<18}{}\n", what, value); };
  row("file", info.path + " (" + info.format + ")");
  row("architecture", info.architecture + (info.name.empty() ? "" : ", " + io::printable(info.name)));
  row("layers",
      fmt::format("{} ({}), d: gated delta rule, A: attention{}", info.layers.size(), layers_text(info.layers),
                  info.mtp_layers == 1  ? "; one more for drafts (MTP)"
                  : info.mtp_layers > 1 ? fmt::format("; {} for prediction left out", info.mtp_layers)
                                        : ""));
  row("hidden size", std::to_string(info.hidden));
  row("vocabulary", fmt::format("{}, {} head{}", info.vocabulary, info.tied_head ? "tied" : "separate",
                                info.has_tokenizer ? "" : ", no tokenizer"));
  row("context", info.context > 0 ? std::to_string(info.context) : "not given");
  row("attention",
      fmt::format("{} heads, {} of keys, head size {}, {} of it rotated with base {:g}{}", info.attention_heads,
                  info.attention_kv_heads, info.head_dim, info.rotary_dim, info.rope_theta,
                  info.rope_scaling.empty()
                      ? ""
                      : fmt::format(", scaled to {:g} times the context ({})", info.rope_factor, info.rope_scaling)));
  row("gated delta rule",
      fmt::format("{} key heads of {}, {} value heads of {}, {}; convolution over {}", info.key_heads, info.key_dim,
                  info.value_heads, info.value_dim, info.head_map, info.conv_width));
  if (info.experts > 0) {
    row("experts", fmt::format("{} of {} per token, hidden size {}; shared {}", info.experts_used, info.experts,
                               info.expert_hidden, info.shared_hidden));
  }
  if (info.dense_hidden > 0) row("feed-forward", fmt::format("hidden size {}", info.dense_hidden));
  std::string ends;
  for (std::int32_t token : info.end_tokens) ends += (ends.empty() ? "" : ", ") + std::to_string(token);
  row("end tokens", ends.empty() ? "none" : ends);
  row("parameters", fmt::format("{:.4g} million", static_cast<double>(info.parameters) * 1e-6));
  row("weights", fmt::format("{}, of which a decode step reads {}; {} copied at load", format_bytes(info.weight_bytes),
                             format_bytes(info.decode_bytes), format_bytes(info.copied_bytes)));
  if (info.mtp_bytes > 0) {
    row("MTP layer", fmt::format("{} of weights, and {} per token of keys and values, with --draft mtp or auto",
                                 format_bytes(info.mtp_bytes), format_bytes(info.mtp_token_bytes)));
  }
  row("a sequence",
      fmt::format("{} of state in {}, and {} per token of keys and values in {}", format_bytes(info.state_bytes),
                  dtype_name(info.state_dtype), format_bytes(info.cache_token_bytes), dtype_name(info.kv_dtype)));
}

void print_ranks(const std::vector<RankMemory>& ranks) {
  print("{:<6} {:>10} {:>10} {:>10} {:>10} {:>9} {:>11} {:>8} {:>7}\n", "rank", "weights", "copied", "state",
        "per token", "key heads", "query heads", "kv heads", "experts");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankMemory& memory = ranks[rank];
    print("{:<6} {:>10} {:>10} {:>10} {:>10} {:>9} {:>11} {:>8} {:>7}\n", rank, format_bytes(memory.weight_bytes),
          format_bytes(memory.copied_bytes), format_bytes(memory.state_bytes), format_bytes(memory.cache_token_bytes),
          memory.key_heads, memory.query_heads, memory.kv_heads, memory.experts);
  }
}

nlohmann::json to_json(const std::vector<RankMemory>& ranks) {
  nlohmann::json rows = nlohmann::json::array();
  for (const RankMemory& memory : ranks) {
    rows.push_back({{"weight_bytes", memory.weight_bytes},
                    {"copied_bytes", memory.copied_bytes},
                    {"state_bytes", memory.state_bytes},
                    {"cache_token_bytes", memory.cache_token_bytes},
                    {"key_heads", memory.key_heads},
                    {"query_heads", memory.query_heads},
                    {"kv_heads", memory.kv_heads},
                    {"experts", memory.experts}});
  }
  return rows;
}

nlohmann::json to_json(const std::vector<TensorInfo>& tensors) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TensorInfo& tensor : tensors) {
    rows.push_back({{"name", io::printable(tensor.name)},
                    {"type", tensor.type},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes},
                    {"used", tensor.used},
                    {"operation", tensor.operation},
                    {"decode_kernel", tensor.decode_kernel},
                    {"mtp", tensor.mtp},
                    {"prefill_kernel", tensor.prefill_kernel}});
  }
  return rows;
}

nlohmann::json to_json(const ModelInfo& info) {
  return {{"path", info.path},
          {"format", info.format},
          {"architecture", info.architecture},
          {"name", io::printable(info.name)},
          {"layers", layers_text(info.layers)},
          {"mtp_layers", info.mtp_layers},
          {"hidden", info.hidden},
          {"vocabulary", info.vocabulary},
          {"context", info.context},
          {"attention_heads", info.attention_heads},
          {"attention_kv_heads", info.attention_kv_heads},
          {"head_dim", info.head_dim},
          {"rotary_dim", info.rotary_dim},
          {"rope_theta", info.rope_theta},
          {"rope_scaling", info.rope_scaling.empty() ? nlohmann::json() : nlohmann::json(info.rope_scaling)},
          {"rope_factor", info.rope_factor},
          {"norm_eps", info.norm_eps},
          {"key_heads", info.key_heads},
          {"value_heads", info.value_heads},
          {"key_dim", info.key_dim},
          {"value_dim", info.value_dim},
          {"conv_width", info.conv_width},
          {"head_map", info.head_map},
          {"experts", info.experts},
          {"experts_used", info.experts_used},
          {"expert_hidden", info.expert_hidden},
          {"shared_hidden", info.shared_hidden},
          {"dense_hidden", info.dense_hidden},
          {"tied_head", info.tied_head},
          {"has_tokenizer", info.has_tokenizer},
          {"has_chat_template", info.has_chat_template},
          {"end_tokens", info.end_tokens},
          {"parameters", info.parameters},
          {"weight_bytes", info.weight_bytes},
          {"decode_bytes", info.decode_bytes},
          {"copied_bytes", info.copied_bytes},
          {"mtp_bytes", info.mtp_bytes},
          {"mtp_token_bytes", info.mtp_token_bytes},
          {"state_bytes", info.state_bytes},
          {"state_dtype", dtype_name(info.state_dtype)},
          {"cache_token_bytes", info.cache_token_bytes},
          {"kv_dtype", dtype_name(info.kv_dtype)},
          {"device", info.device},
          {"device_bytes", info.device_bytes},
          {"tensors", to_json(info.tensors)}};
}

int inspect_unknown(const Options& options, const std::string& reason) {
  const std::vector<TensorInfo> tensors = list_tensors(options.path);
  if (options.json) {
    const nlohmann::json result = {{"path", options.path}, {"problem", reason}, {"tensors", to_json(tensors)}};
    print("{}\n", result.dump(1));
  } else {
    print_tensors(tensors);
    print("\n");
    print_types(tensors);
  }
  flush_output();
  note("thalweg: this model cannot be run: {}\n", reason);
  return 1;
}

int inspect(const Options& options) {
  ModelOptions model_options;
  model_options.prefetch = false;
  model_options.context = 1;
  options.types.set(model_options);
  std::unique_ptr<Model> model;
  std::string reason;
  try {
    model = std::make_unique<Model>(Model::load(options.path, model_options));
  } catch (const Error& error) {
    reason = error.what();
  }
  if (!model) return inspect_unknown(options, reason);
  const ModelInfo& info = model->info();
  std::vector<RankMemory> ranks;
  if (options.ranks > 1) ranks = rank_memory(options.path, options.ranks, options.rank_split);
  if (options.json) {
    nlohmann::json result = to_json(info);
    if (!ranks.empty()) result["ranks"] = to_json(ranks);
    print("{}\n", result.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print_info(info);
    print("\n");
    if (!ranks.empty()) {
      print_ranks(ranks);
      print("\n");
    }
    print_types(info.tensors);
    print("\n");
    print_tensors(info.tensors);
  }
  flush_output();
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("inspect", "The contents of a model file, and the kernels that run it");
  auto options = std::make_shared<Options>();
  add_model_file(*command, options->given);
  command->add_flag("--json", options->json, "Print as JSON");
  command->add_option("--ranks", options->ranks, "Also what each of so many ranks would hold, see docs/scaling.md")
      ->check(whole_number(1, 1024));
  add_state_types(*command, options->types);
  add_rank_split(*command, options->rank_split);
  command->callback([options, &exit_code] {
    options->path = model_file(options->given);
    exit_code = inspect(*options);
  });
}

}  // namespace thalweg::app
