#include "runtime/commands/generate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/package/package_files.h"
#include "plan/schedules/table.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/phase.h"
#include "runtime/module/messages.h"
#include "runtime/reports/offload_report.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

// Holds the sizes that the model accepts along one dimension.
struct Range {
  int64_t least = 1, most = std::numeric_limits<int64_t>::max();
  int64_t Clamp(int64_t size) const { return std::clamp(size, least, std::max(least, most)); }
};

Range RangeOf(const Manifest& manifest, const ValueInfo& value, size_t dimension) {
  Range range;
  if (dimension >= value.shape.size()) return range;  // not recorded in the model file
  const std::string& size = value.shape[dimension];
  if (!size.empty() && size.find_first_not_of("0123456789") == std::string::npos) {
    range.least = range.most = std::stoll(size);
  } else if (auto found = manifest.symbols.find(size); found != manifest.symbols.end()) {
    range.least = std::max<int64_t>(1, found->second.first);
    range.most = found->second.second;
  }
  return range;
}

// Describes how a text is passed to the inputs of the model.
struct Inputs {
  enum Role { kTokens, kMask, kPositions, kZeros };
  std::vector<Role> roles;
  std::vector<at::ScalarType> types;
  bool batched = true;
  Range rows, length;

  explicit Inputs(const Manifest& manifest) {
    int tokens = 0;
    for (int id : manifest.inputs) {
      const ValueInfo& value = manifest.values[id];
      const bool integer = value.dtype.empty() || at::isIntegralType(DtypeOf(value.dtype), false);
      Role role = kTokens;
      // In PyTorch's own layers, a padding mask is true for what is not seen.
      const bool padding = value.name.find("padding") != std::string::npos;
      const bool flags = integer || value.dtype == "bool";
      if (value.name.find("mask") != std::string::npos && !padding && flags)
        role = kMask;
      else if (value.name.find("position") != std::string::npos)
        role = kPositions;
      else if (value.name.find("token_type") != std::string::npos)
        role = kZeros;
      else if (value.kind != ValueKind::kTensor || !integer || ++tokens > 1)
        throw Error("input \"" + value.name + "\"",
                    "generate does not know what to give it: it fills in tokens, attention_mask "
                    "(integers or bools: 1 for tokens that are seen), position_ids and "
                    "token_type_ids");
      roles.push_back(role);
      types.push_back(value.dtype.empty() ? at::kLong : DtypeOf(value.dtype));
      if (role != kTokens) continue;
      if (!value.shape.empty() && value.shape.size() > 2)
        throw Error("input \"" + value.name + "\"",
                    "has sizes [" + Join(value.shape, ", ") + "] where [batch, length] is needed");
      batched = value.shape.size() != 1;
      rows = batched ? RangeOf(manifest, value, 0) : Range{1, 1};
      length = RangeOf(manifest, value, batched ? 1 : 0);
    }
    if (tokens == 0) throw Error("manifest.json", "the model has no input for tokens");
  }
};

struct Texts {
  std::vector<std::vector<int64_t>> rows;
  std::vector<size_t> given;  // prompt tokens
  std::vector<bool> ended;
  bool bytes = true;
};

// `file`: what the prompt file holds.
Texts ReadTexts(const GenerateOptions& options, const std::string& file) {
  const std::pair<const char*, double> numbers[] = {
      {"--temperature", options.sample.temperature},
      {"--top-p", options.sample.top_p},
      {"--repetition-penalty", options.sample.repetition_penalty}};
  for (const auto& [name, value] : numbers)
    if (!std::isfinite(value)) throw UsageError(name, "is not a finite number");
  Texts texts;
  std::vector<std::string> prompts = options.prompts;
  if (!options.prompt_file.empty()) prompts.push_back(file);
  for (const std::string& prompt : prompts) {
    texts.rows.emplace_back();
    for (unsigned char byte : prompt) texts.rows.back().push_back(byte);
  }
  texts.bytes = options.tokens.empty();
  if (!texts.bytes && !prompts.empty())
    throw UsageError("--tokens", "cannot be combined with --prompt: give one of them");
  for (const std::string& list : options.tokens) {
    texts.rows.emplace_back();
    for (const std::string& token : Split(list, ',')) {
      if (token.empty() || token.size() > 18 ||
          token.find_first_not_of("0123456789") != std::string::npos)
        throw UsageError("--tokens", Quote(token) + " is not a token: give numbers, such as 1,2,3");
      texts.rows.back().push_back(std::stoll(token));
    }
  }
  if (texts.rows.empty()) throw UsageError("generate", "give --prompt, --prompt-file or --tokens");
  for (const std::vector<int64_t>& row : texts.rows) {
    if (row.empty()) throw UsageError("generate", "a prompt is empty: the model needs a token");
    texts.given.push_back(row.size());
  }
  texts.ended.resize(texts.rows.size());
  return texts;
}

class Generator : public Microbatches {
 public:
  Generator(const RunOptions& run, const GenerateOptions& options, Transport& transport)
      : run_(run), options_(options), transport_(transport), session_(transport) {}

  void Open() {
    if (run_.threads > 0) at::set_num_threads(run_.threads);
    std::string file;
    Phase(transport_, "reading", [&] {
      if (!options_.prompt_file.empty()) file = ReadFile(options_.prompt_file);
    });
    texts_ = ReadTexts(options_, file);
    Phase(transport_, "reading", [&] {
      UseMatMul(run_.matmul, "--matmul");
      manifest_ = ReadManifest(run_.package);
      inputs_ = std::make_unique<Inputs>(manifest_);
      CheckLogits();
      CheckNumbers();
      CheckOffload(run_.offload_dir, run_.offload_report, transport_);
      OutputFiles outputs(RunFiles(
          run_.package, manifest_, session_.job,
          {options_.prompt_file, run_.weights, run_.conf, run_.device_map}));
      outputs.Add("--output", run_.output, transport_.rank() == 0);
      outputs.Add("--offload-report", run_.offload_report, transport_.rank() == 0);
    });
    const int64_t texts = static_cast<int64_t>(texts_.rows.size());
    int64_t parts = std::min<int64_t>(texts, transport_.size());
    if ((texts + parts - 1) / parts > inputs_->rows.most)
      parts = (texts + inputs_->rows.most - 1) / inputs_->rows.most;
    rows_ = inputs_->rows.Clamp((texts + parts - 1) / parts);
    parts = (texts + rows_ - 1) / rows_;
    session_.job.microbatches = static_cast<int>(parts);
    session_.job.schedule = kForwardSchedule;
    session_.job.losses.clear();
    session_.Open(SessionOptionsOf(run_, false));
    session_.Load({this}, Agreed());
    session_.Start();
  }

  void Run() {
    for (int64_t i = 0; i < options_.new_tokens; ++i) {
      if (std::find(texts_.ended.begin(), texts_.ended.end(), false) == texts_.ended.end()) break;
      made_.clear();
      session_.Step(*this, i);
      ++sweeps_;
      for (const std::string& from : transport_.AllGather(Json(made_).dump()))
        for (const Json& one : Json::parse(from))
          Append(one[0].get<size_t>(), one[1].get<int64_t>());
    }
  }

  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int /*microbatch*/) override {
    std::vector<TensorSpec> specs;
    for (at::ScalarType type : inputs_->types) specs.push_back({type, Sizes(), true});
    return specs;
  }

  at::Tensor Input(int input, int64_t /*minibatch*/, int microbatch) override {
    return Filled(inputs_->roles[static_cast<size_t>(input)], microbatch)
        .to(inputs_->types[static_cast<size_t>(input)]);
  }

  void Output(int output, int microbatch, const c10::IValue& value) override {
    if (output != options_.logits) return;
    session_.AwaitDevice();
    Take(microbatch, OnHost(ToTensor(value)));
  }

  void Write() {
    Phase(transport_, "writing", [&] {
      ReportOffload(session_, sweeps_, run_.offload_report);
      if (transport_.rank() == 0) {
        const std::string text = Result();
        if (run_.output.empty()) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
        } else {
          WriteFile(run_.output, text);
        }
      }
    });
  }

 private:
  const RunOptions& run_;
  const GenerateOptions& options_;
  Transport& transport_;
  Manifest manifest_;
  std::unique_ptr<Inputs> inputs_;
  Texts texts_;
  int64_t rows_ = 1;  // rows of a microbatch
  Session session_;
  std::vector<std::pair<size_t, int64_t>> made_;  // in this pass, on this rank: row, token
  int64_t sweeps_ = 0;

  // Every rank must make the same choices.
  AgreedFields Agreed() const {
    AgreedFields fields = AgreedOptions(run_);
    // Names every option, so that this does not compile until a new one is considered.
    const auto& [prompts, tokens, prompt_file, new_tokens, sample, seed, stop, context, logits,
                 json] = options_;
    const auto& [penalty, temperature, top_k, top_p] = sample;
    auto add = [&](const char* name, const Json& value) { fields.push_back({name, value.dump()}); };
    add("texts", texts_.rows);
    add("bytes", texts_.bytes);
    add("new_tokens", new_tokens);
    add("repetition_penalty", penalty);
    add("temperature", temperature);
    add("top_k", top_k);
    add("top_p", top_p);
    add("seed", seed);
    add("stop", stop);
    add("context", context);
    add("logits", logits);
    return fields;
  }

  void CheckLogits() const {
    const size_t outputs = manifest_.outputs.size();
    if (static_cast<size_t>(options_.logits) >= outputs)
      throw Error("--logits", "the model has no output " + std::to_string(options_.logits));
    const ValueInfo& value = manifest_.values[manifest_.outputs[options_.logits]];
    if (value.kind != ValueKind::kTensor)
      throw Error("output \"" + value.name + "\"", "is not a tensor");
    if (value.shape.empty()) return;
    const std::string& size = value.shape.back();
    if (size.find_first_not_of("0123456789") != std::string::npos) return;
    const int64_t vocabulary = std::stoll(size);
    if (texts_.bytes && vocabulary > 256)
      throw Error("output \"" + value.name + "\"",
                  "the vocabulary has " + size + " tokens, more than there are bytes",
                  "give the prompt as --tokens 1,2,3");
    for (const std::vector<int64_t>& row : texts_.rows)
      for (int64_t token : row)
        if (token >= vocabulary)
          throw Error("token " + std::to_string(token),
                      "is not in the vocabulary of " + size + " tokens");
  }

  // Checks the numeric options against the package.
  void CheckNumbers() const {
    if (options_.context > inputs_->length.most)
      throw Error("--context " + std::to_string(options_.context),
                  "the model was exported for " + std::to_string(inputs_->length.most) +
                      " tokens at most");
    if (options_.stop < 0) return;
    int64_t tokens = texts_.bytes ? 256 : std::numeric_limits<int64_t>::max();
    if (const std::vector<std::string>& shape =
            manifest_.values[manifest_.outputs[options_.logits]].shape;
        !shape.empty() && shape.back().find_first_not_of("0123456789") == std::string::npos)
      tokens = std::min<int64_t>(tokens, std::stoll(shape.back()));
    if (options_.stop >= tokens)
      throw Error("--stop " + std::to_string(options_.stop),
                  "no text would end: the model has the tokens 0 to " + std::to_string(tokens - 1),
                  texts_.bytes ? "tokens are bytes: 10 ends a text at the end of a line" : "");
  }

  // Returns how many tokens of a text the model sees.
  int64_t Seen(size_t row) const {
    int64_t most = inputs_->length.most;
    if (options_.context > 0) most = std::min(most, options_.context);
    return std::min(static_cast<int64_t>(texts_.rows[row].size()), most);
  }

  int64_t Length() const {
    int64_t longest = 1;
    for (size_t row = 0; row < texts_.rows.size(); ++row) longest = std::max(longest, Seen(row));
    return inputs_->length.Clamp(longest);
  }

  std::vector<int64_t> Sizes() const {
    return inputs_->batched ? std::vector<int64_t>{rows_, Length()}
                            : std::vector<int64_t>{Length()};
  }

  // Rows beyond the texts repeat the last one.
  size_t Text(int microbatch, int64_t row) const {
    return std::min(static_cast<size_t>(microbatch * rows_ + row), texts_.rows.size() - 1);
  }

  at::Tensor Filled(Inputs::Role role, int microbatch) const {
    const int64_t length = Length();
    at::Tensor whole = at::zeros({rows_, length}, at::kLong);
    auto at = whole.accessor<int64_t, 2>();
    for (int64_t r = 0; r < rows_; ++r) {
      const std::vector<int64_t>& text = texts_.rows[Text(microbatch, r)];
      const int64_t seen = Seen(Text(microbatch, r));
      for (int64_t i = 0; i < length; ++i) switch (role) {
          case Inputs::kTokens:
            if (i < seen) at[r][i] = text[text.size() - static_cast<size_t>(seen - i)];
            break;
          case Inputs::kMask:
            at[r][i] = i < seen;
            break;
          case Inputs::kPositions:
            at[r][i] = i;
            break;
          case Inputs::kZeros:
            break;
        }
    }
    return whole.reshape(Sizes());
  }

  void Take(int microbatch, const at::Tensor& value) {
    at::Tensor logits = value.to(at::kFloat).contiguous();
    if (!inputs_->batched) logits = logits.unsqueeze(0);
    const int64_t length = Length();
    const bool last_only = logits.dim() == 2;
    if ((!last_only && (logits.dim() != 3 || logits.size(1) != length)) || logits.size(0) != rows_)
      throw Error("output " + std::to_string(options_.logits),
                  "is not logits [batch, length, vocabulary]: it has other sizes",
                  "name the output that has them: --logits N");
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t row = static_cast<size_t>(microbatch * rows_ + r);
      if (row >= texts_.rows.size() || texts_.ended[row]) continue;
      const int64_t seen = Seen(row);
      if (last_only && seen < length)
        throw Error("prompt",
                    "the model gives logits for its last position only, and the prompt "
                    "is shorter than its length of " +
                        std::to_string(length) + " tokens");
      at::Tensor here = last_only ? logits[r] : logits[r][seen - 1];
      std::vector<float> scores(here.data_ptr<float>(), here.data_ptr<float>() + here.numel());
      const std::vector<int64_t>& text = texts_.rows[row];
      made_.push_back({row, NextToken(std::move(scores), text, options_.sample,
                                      RandomOf(options_.seed, row, text.size()))});
    }
  }

  void Append(size_t row, int64_t token) {
    if (texts_.bytes && token > 255)
      throw Error("token " + std::to_string(token), "is not a byte",
                  "give the prompt as --tokens 1,2,3");
    texts_.rows[row].push_back(token);
    if (token == options_.stop) texts_.ended[row] = true;
  }

  std::string Result() const {
    std::string out;
    Json sequences = Json::array();
    for (size_t row = 0; row < texts_.rows.size(); ++row) {
      const std::vector<int64_t>& text = texts_.rows[row];
      std::string bytes, numbers;
      for (int64_t token : text) {
        if (texts_.bytes) bytes += static_cast<char>(token);
        numbers += (numbers.empty() ? "" : ",") + std::to_string(token);
      }
      out += (texts_.bytes ? bytes : numbers) + "\n";
      Json sequence{
          {"tokens", text},
          {"new_tokens",
           std::vector<int64_t>(text.begin() + static_cast<long>(texts_.given[row]), text.end())}};
      if (texts_.bytes)
        sequence["text"] =
            Json::parse(Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace));
      sequences.push_back(std::move(sequence));
    }
    return options_.json ? FormatJson({{"sequences", sequences}}) : out;
  }
};

}  // namespace

void Generate(const RunOptions& run, const GenerateOptions& options, Transport& transport) {
  Generator generator(run, options, transport);
  generator.Open();
  generator.Run();
  generator.Write();
}

}  // namespace pipewright
