#include "runtime/commands/infer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/symbol.h"
#include "base/text.h"
#include "formats/call_text.h"
#include "formats/package/package_files.h"
#include "formats/weights/safetensors.h"
#include "plan/schedules/table.h"
#include "runtime/commands/bench_requests.h"
#include "runtime/cpu/matmul.h"
#include "runtime/exec/phase.h"
#include "runtime/module/messages.h"
#include "runtime/reports/offload_report.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

// Reads the model's inputs from a file and cuts their rows into microbatches of equal size, except
// that the last may be smaller. Keeps the outputs that this rank makes.
class InputFile : public Microbatches {
 public:
  // `await_device` is called before an output is read.
  InputFile(const std::string& path, const Manifest& manifest, int microbatches,
            std::function<void()> await_device)
      : file_(path), microbatches_(microbatches), await_device_(std::move(await_device)) {
    std::vector<std::string> names;
    for (const TensorInfo& info : file_.header().tensors) names.push_back(info.name);
    for (int id : manifest.inputs)
      if (const std::string& name = manifest.values[id].name; !file_.Find(name)) {
        const std::vector<std::string> others = OutputsWithout(manifest, id);
        throw Error(NoTensor(path, name, names).what() + ("; " + CallText(manifest)) +
                    (others.empty() ? "" : "; --outputs " + Join(others, ",") + " needs none"));
      }
    if (microbatches > 1) CheckRows(manifest);
    for (int id : manifest.inputs) {
      const TensorInfo& info = file_.At(manifest.values[id].name);
      if (inputs_.empty() && !info.shape.empty() && info.shape[0] == 0)
        throw Error(path, Quote(info.name) + " has no rows, sizes " + ShapeText(info.shape),
                    "give it at least one: each row is a sample");
      inputs_.push_back(&info);
      if (microbatches == 1) continue;
      int64_t rows = info.shape.empty() ? 0 : info.shape[0];
      if ((microbatches - 1) * Rows(info) >= rows)
        throw Error(path,
                    "the " + Counted(rows, "row") + " of \"" + manifest.values[id].name +
                        "\" cannot be cut into " + std::to_string(microbatches) +
                        " microbatches of " + std::to_string(Rows(info)),
                    "choose fewer microbatches (--microbatches)");
    }
  }

  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int microbatch) override {
    std::vector<TensorSpec> specs;
    for (const TensorInfo* info : inputs_) specs.push_back(Spec(*info, microbatch));
    return specs;
  }
  at::Tensor Input(int i, int64_t /*minibatch*/, int microbatch) override {
    const TensorInfo& info = *inputs_[i];
    const TensorSpec spec = Spec(info, microbatch);
    at::Tensor out = at::empty(spec.sizes, spec.type);
    if (!out.nbytes()) return out;
    const size_t row = out.nbytes() / (microbatches_ > 1 ? out.size(0) : 1);
    file_.Read(info, microbatches_ > 1 ? microbatch * Rows(info) * row : 0,
               static_cast<char*>(out.data_ptr()), out.nbytes());
    return out;
  }
  void Output(int output, int microbatch, const c10::IValue& value) override {
    await_device_();
    outputs[output].resize(microbatches_);
    outputs[output][microbatch] = OnHost(ToTensor(value)).contiguous();
  }

  std::vector<Found> Reads(bool whole) override {
    return {FoundFile("--input", file_.path(), whole)};
  }

  // Returns an input that is also an output, as it is in the file.
  TensorToWrite Copy(size_t input) const { return CopyOf(file_, *inputs_[input]); }

  std::map<int, std::vector<at::Tensor>> outputs;  // by output, then microbatch

 private:
  // Throws Error for inputs of which only one can have a row for each sample.
  void CheckRows(const Manifest& manifest) const {
    const ValueInfo* first = nullptr;
    auto rows = [&](const ValueInfo& value) { return file_.At(value.name).shape.at(0); };
    for (int id : manifest.inputs) {
      const ValueInfo& value = manifest.values[id];
      if (value.shape.empty() || file_.At(value.name).shape.empty() ||
          SymbolsOf(value.shape[0]) != std::vector{value.shape[0]})
        continue;
      if (!first) first = &value;
      if (value.shape[0] != first->shape[0] && rows(value) != rows(*first))
        throw Error(file_.path(),
                    "\"" + first->name + "\" has " + Counted(rows(*first), "row") + " and \"" +
                        value.name + "\" " + std::to_string(rows(value)) +
                        ", so one of them does not have a row for each sample",
                    "one microbatch (--microbatches 1) cuts neither");
    }
  }

  // Returns the rows of every microbatch but the last.
  int64_t Rows(const TensorInfo& info) const {
    int64_t rows = info.shape.empty() ? 0 : info.shape[0];
    return std::max<int64_t>(1, (rows + microbatches_ - 1) / microbatches_);
  }
  TensorSpec Spec(const TensorInfo& info, int microbatch) const {
    TensorSpec spec{DtypeOfSafetensors(info.dtype), info.shape, true};
    if (microbatches_ > 1)
      spec.sizes[0] = std::min(Rows(info), info.shape[0] - microbatch * Rows(info));
    return spec;
  }

  SafetensorsFile file_;
  std::vector<const TensorInfo*> inputs_;
  const int microbatches_;
  const std::function<void()> await_device_;
};

// Opens the input, and checks that no output would overwrite a file that is read.
std::unique_ptr<InputFile> OpenFiles(const RunOptions& options, Session& session) {
  const bool first = session.transport.rank() == 0;
  auto input =
      std::make_unique<InputFile>(options.input, session.run.manifest, options.microbatches,
                                  [&session] { session.AwaitDevice(); });
  OutputFiles outputs(RunFiles(options.package, session.run.manifest, session.job,
                               {options.input, options.weights, options.conf, options.device_map}));
  outputs.Add("--output", options.output, first);
  outputs.Add("--offload-report", options.offload_report, first);
  return input;
}

// Gathers the parts of all outputs on rank 0, after their sizes.
void Gather(std::map<int, std::vector<at::Tensor>>& outputs, int microbatches,
            Transport& transport) {
  Json mine = Json::array();
  for (auto& [output, parts] : outputs)
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].defined())  // undefined: another replica has it
        mine.push_back({{"output", output},
                        {"microbatch", i},
                        {"dtype", DtypeName(parts[i].scalar_type())},
                        {"sizes", parts[i].sizes().vec()}});
  const std::vector<std::string> all = transport.AllGather(mine.dump());
  int moved = 0;  // parts so far, which the watchdog sees as progress
  if (transport.rank() != 0) {
    for (auto& [output, parts] : outputs)
      for (at::Tensor& part : parts)
        if (part.defined())
          transport.WaitFor(
              transport.Send(0, 1 + output, MakeBundle({part})),
              {.kind = Awaited::kTensor, .rank = 0, .microbatch = moved++, .sends = 1});
    return;
  }
  for (int rank = 1; rank < transport.size(); ++rank)
    for (const Json& entry : Json::parse(all[rank])) {
      const int output = entry["output"].get<int>();
      at::Tensor part = at::empty(entry["sizes"].get<std::vector<int64_t>>(),
                                  DtypeOf(entry["dtype"].get<std::string>()));
      transport.WaitFor(transport.Recv(rank, 1 + output, MakeBundle({part})),
                        {.kind = Awaited::kTensor, .rank = rank, .microbatch = moved++});
      outputs[output].resize(microbatches);
      outputs[output][entry["microbatch"].get<size_t>()] = part;
    }
}

// Writes the model's outputs by name, on rank 0. Returns the number of outputs.
size_t WriteOutputs(const std::string& path, const Manifest& manifest, const InputFile& input) {
  std::map<int, at::Tensor> whole;
  for (const auto& [output, parts] : input.outputs)
    whole[output] = parts.size() == 1     ? parts[0]
                    : parts[0].dim() == 0 ? at::stack(parts)
                                          : at::cat(parts);
  std::vector<TensorToWrite> tensors;
  std::set<int> written;  // an output may be listed twice
  for (int id : manifest.outputs) {
    if (manifest.values[id].producer >= 0 || !written.insert(id).second) continue;
    auto found = std::find(manifest.inputs.begin(), manifest.inputs.end(), id);
    tensors.push_back(input.Copy(static_cast<size_t>(found - manifest.inputs.begin())));
  }
  for (const auto& [output, tensor] : whole) {
    if (!written.insert(manifest.outputs[output]).second) continue;
    tensors.push_back({manifest.values[manifest.outputs[output]].name,
                       SafetensorsDtype(tensor.scalar_type()),
                       tensor.sizes().vec(),
                       {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()}});
  }
  WriteSafetensors(path, std::move(tensors));
  return written.size();
}

// Does what comes before the weights.
std::unique_ptr<InputFile> Open(const RunOptions& options, Session& session) {
  Phase(session.transport, "starting", [&] {
    UseMatMul(options.matmul, "--matmul");
    CheckOffload(options.offload_dir, options.offload_report, session.transport);
  });
  session.job.microbatches = options.microbatches;
  session.job.schedule = kForwardSchedule;
  session.job.losses.clear();
  SessionOptions asked = SessionOptionsOf(options, false);
  asked.outputs = options.outputs;
  session.Open(asked);
  std::unique_ptr<InputFile> input;
  Phase(session.transport, "reading", [&] { input = OpenFiles(options, session); });
  return input;
}

}  // namespace

void Infer(const RunOptions& options, Transport& transport) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  Phase(transport, "starting", [&] {
    if (options.output.empty()) throw Error("output", "its name is empty", "name a file");
  });
  Session session(transport);
  const std::unique_ptr<InputFile> input = Open(options, session);
  session.Load({input.get()}, AgreedOptions(options));
  session.Start();
  int64_t sweeps = 1;
  if (options.on_request) sweeps += AnswerRequests(session, *input);
  session.Step(*input, sweeps - 1);

  Gather(input->outputs, options.microbatches, transport);
  Phase(transport, "writing", [&] {
    if (transport.rank() != 0) return;
    const size_t written = WriteOutputs(options.output, session.run.manifest, *input);
    std::printf("%s written to %s\n", Counted(written, "output").c_str(), options.output.c_str());
  });
  Phase(transport, "writing", [&] {
    std::fputs(ReportOffload(session, sweeps, options.offload_report).c_str(), stdout);
  });
}

std::vector<std::string> CheckInfer(const RunOptions& options, Transport& transport,
                                    Manifest& manifest) {
  Session session(transport);
  const std::unique_ptr<InputFile> input = Open(options, session);
  session.Check({input.get()});
  manifest = session.run.manifest;
  return session.run.warnings;
}

}  // namespace pipewright
