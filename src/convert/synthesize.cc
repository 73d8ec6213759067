#include "convert/synthesize.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "checkpoint/config_checks.h"
#include "convert/convert.h"
#include "convert/published_shapes.h"
#include "io/gguf_writer.h"
#include "quant/pack.h"
#include "thalweg/error.h"

namespace thalweg::convert {
namespace {

// Without experts, `wide` is the hidden size of the dense feed-forward block.
ModelConfig make_config(std::int64_t hidden, std::int64_t groups, std::int64_t wide, std::int64_t experts) {
  ModelShapes shapes;
  shapes.architecture = experts > 0 ? "qwen35moe" : "qwen35";
  shapes.hidden = hidden;
  shapes.layers = static_cast<int>(groups) * kLayerInterval;
  shapes.heads = static_cast<int>(std::max<std::int64_t>(hidden / 128, 1));
  shapes.kv_heads = shapes.heads % 2 == 0 ? 2 : 1;
  shapes.key_heads = static_cast<int>(hidden / 128);
  shapes.value_heads = 2 * shapes.key_heads;
  shapes.experts = static_cast<int>(experts);
  shapes.experts_used = experts > 0 ? 4 : 0;
  shapes.feed_forward = wide;
  shapes.vocabulary = hidden < 1024 ? 4096 : 32768;
  shapes.context = 32768;
  return config_of(shapes);
}

std::vector<TensorPlan> make_plans(const ModelConfig& config, const TypeMix& mix) {
  std::vector<TensorPlan> plans = plan_hugging_face(config, "", "mtp.", NoTensors());
  choose_types(plans, mix);
  return plans;
}

std::int64_t count_of(const TensorPlan& plan) {
  std::int64_t count = 1;
  for (std::int64_t extent : plan.shape) count *= extent;
  return count;
}

double bytes_of_plans(const std::vector<TensorPlan>& plans) {
  double bytes = 0;
  for (const TensorPlan& plan : plans) bytes += static_cast<double>(bytes_of(plan.dtype, count_of(plan)));
  return bytes;
}

// The configuration whose weights come closest to the wanted size: the largest hidden size with room for two groups of
// layers, then as many groups as fit, then wider feed-forward blocks or more experts.
ModelConfig fit_config(const TypeMix& mix, const SynthOptions& options) {
  constexpr std::int64_t kWideStep = 256;
  const double target = options.gigabytes * 1e9;
  std::int64_t hidden = 2048;
  const auto shape = [&](std::int64_t groups, std::int64_t more) {
    return options.experts ? make_config(hidden, groups, std::max(hidden / 2, kWideStep), 16 + more)
                           : make_config(hidden, groups, 3 * hidden + more * kWideStep, 0);
  };
  const auto size = [&](std::int64_t groups, std::int64_t more) {
    return bytes_of_plans(make_plans(shape(groups, more), mix));
  };
  while (hidden > 256 && size(2, 0) > target) hidden /= 2;
  const double one = size(1, 0);
  if (one > target * 1.05) {
    throw Error("synth", "--gigabytes", "at least " + std::to_string(std::ceil(one * 1e-6) * 1e-3) + " for " + mix.name,
                std::to_string(options.gigabytes));
  }
  const std::int64_t groups = 1 + static_cast<std::int64_t>(std::max(0.0, target - one) / (size(2, 0) - one));
  const double left = target - size(groups, 0);
  const double step = size(groups, 1) - size(groups, 0);
  return shape(groups, static_cast<std::int64_t>(std::max(0.0, std::round(left / step))));
}

std::string utf8(std::uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | code >> 6U), static_cast<char>(0x80U | (code & 0x3FU))};
}

// One token per byte, as byte-level BPE writes it: bytes that do not print are letters from U+0100 on.
void add_byte_tokenizer(io::GgufMetadata& metadata, const ModelConfig& config) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    tokens.push_back(utf8(prints ? byte : next++));
    types.push_back(1);
  }
  tokens.emplace_back("th");
  types.push_back(1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"}) {
    tokens.emplace_back(special);
    types.push_back(3);
  }
  const auto end =
      static_cast<std::uint32_t>(std::find(tokens.begin(), tokens.end(), "<|endoftext|>") - tokens.begin());
  while (static_cast<std::int64_t>(tokens.size()) < config.vocabulary) {
    tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
    types.push_back(5);
  }
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", std::string(config.architecture == "qwen3next" ? "qwen2" : "qwen35"));
  metadata.set("tokenizer.ggml.tokens", io::GgufArray{tokens});
  metadata.set("tokenizer.ggml.token_type", io::GgufArray{types});
  metadata.set("tokenizer.ggml.merges", io::GgufArray{std::vector<std::string>{"t h"}});
  metadata.set("tokenizer.ggml.eos_token_id", end);
  metadata.set("tokenizer.ggml.eot_token_id", end + 2);
  metadata.set("tokenizer.ggml.add_bos_token", false);
}

// Packs a pool of random weights once for each dtype and fills matrices with runs from it: packing gigabytes would take
// minutes.
class RandomBlocks {
 public:
  RandomBlocks(std::uint64_t seed, std::int64_t hidden) : random_(seed), scale_(1.0F / std::sqrt(hidden)) {}

  void fill(DType dtype, std::vector<char>& data) {
    const std::vector<char>& pool = pool_of(dtype);
    constexpr std::size_t kRuns = 64;
    const std::size_t run = pool.size() / kRuns;
    for (std::size_t at = 0; at < data.size(); at += run) {
      const std::size_t from = random_() % kRuns * run;
      std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(from), std::min(run, data.size() - at),
                  data.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(static_cast<double>(random_() >> 11U) * 0x1p-53);
  }

 private:
  static constexpr std::int64_t kPoolWeights = std::int64_t{1} << 20;

  const std::vector<char>& pool_of(DType dtype) {
    std::vector<char>& pool = pools_[dtype];
    if (pool.empty()) {
      std::vector<float> values(kPoolWeights);
      // Nearly normal, and identical with every standard library.
      for (float& value : values) {
        value = scale_ * 1.7F * (uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1)) / std::sqrt(3.0F);
      }
      pool.resize(static_cast<std::size_t>(bytes_of(dtype, kPoolWeights)));
      pack(dtype, values.data(), kPoolWeights, pool.data());
    }
    return pool;
  }

  std::mt19937_64 random_;
  float scale_;
  std::map<DType, std::vector<char>> pools_;
};

// Values of the vectors: norms of 1, negative decays.
std::vector<float> small_values(const TensorPlan& plan, RandomBlocks& random) {
  std::vector<float> values(static_cast<std::size_t>(count_of(plan)));
  for (float& value : values) {
    if (plan.name.ends_with("norm.weight")) {
      value = 1.0F;
    } else if (plan.name.ends_with("ssm_a")) {
      value = random.uniform(-8.0F, -0.1F);
    } else if (plan.name.ends_with("ssm_dt.bias")) {
      value = random.uniform(-4.0F, 1.0F);
    } else {
      value = random.uniform(-0.1F, 0.1F);
    }
  }
  return values;
}

}  // namespace

Synthesized synthesize(const std::string& out, const TypeMix& mix, const SynthOptions& options) {
  ModelConfig config =
      options.like.empty() ? fit_config(mix, options) : config_of(published_shapes(options.like, options.layers));
  config.has_mtp = options.mtp;
  config.mtp_sparse = options.mtp && config.experts > 0;
  config.name = options.like.empty() ? "synthetic" : "synthetic " + options.like;
  const std::vector<TensorPlan> plans = make_plans(config, mix);
  io::GgufMetadata metadata = gguf_metadata(config, default_rope_sections(config.rotary_dim), mix.file_type);
  if (options.tokenizer) {
    add_byte_tokenizer(metadata, config);
  } else {
    metadata.set("tokenizer.ggml.model", std::string("none"));
  }
  io::GgufWriter writer(out, metadata, options.progress);
  for (const TensorPlan& plan : plans) writer.declare(plan.name, plan.dtype, plan.shape);
  RandomBlocks random(options.seed, config.hidden);
  std::vector<char> data;
  for (const TensorPlan& plan : plans) {
    if (plan.shape.size() == 1 || plan.name.ends_with("ssm_conv1d.weight")) {
      const std::vector<float> values = small_values(plan, random);
      writer.write(plan.name, values.data(), values.size() * sizeof(float));
      continue;
    }
    // A row is a whole number of blocks, so that every run of rows begins with a block.
    const auto row = static_cast<std::size_t>(bytes_of(plan.dtype, plan.shape.back()));
    std::size_t rows = static_cast<std::size_t>(count_of(plan) / plan.shape.back());
    const std::size_t most = std::max<std::size_t>(1, (std::size_t{8} << 20U) / row);
    while (rows > 0) {
      const std::size_t count = std::min(rows, most);
      data.resize(count * row);
      random.fill(plan.dtype, data);
      writer.write(plan.name, data.data(), data.size());
      rows -= count;
    }
  }
  writer.finish();
  return {static_cast<std::uint64_t>(bytes_of_plans(plans)), config.hidden, static_cast<int>(config.layers.size())};
}

}  // namespace thalweg::convert
