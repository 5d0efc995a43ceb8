#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "plan/call_text.h"
#include "plan/dtype.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/package_files.h"
#include "plan/safetensors.h"
#include "plan/text.h"
#include "runtime/bench_requests.h"
#include "runtime/exec/phase.h"
#include "runtime/matmul.h"
#include "runtime/messages.h"
#include "runtime/offload_report.h"
#include "runtime/train.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

// The model's inputs from a file: all rows, cut into microbatches of equal size except that the
// last may be smaller.
struct InputFile {
  std::unique_ptr<SafetensorsFile> file;
  std::vector<const TensorInfo*> inputs;
  int microbatches = 1;

  void Open(const std::string& path, const Manifest& manifest) {
    file = std::make_unique<SafetensorsFile>(path);
    std::vector<std::string> names;
    for (const TensorInfo& info : file->header().tensors) names.push_back(info.name);
    for (int id : manifest.inputs)
      if (const std::string& name = manifest.values[id].name; !file->Find(name))
        throw Error(NoTensor(path, name, names).what() + ("; " + CallText(manifest)));
    for (int id : manifest.inputs) {
      const TensorInfo& info = file->At(manifest.values[id].name);
      if (inputs.empty() && !info.shape.empty() && info.shape[0] == 0)
        throw Error(path, Quote(info.name) + " has no rows, sizes " + ShapeText(info.shape),
                    "give it at least one: each row is a sample");
      inputs.push_back(&info);
      if (microbatches == 1) continue;
      int64_t rows = info.shape.empty() ? 0 : info.shape[0];
      if ((microbatches - 1) * Rows(info) >= rows)
        throw Error(path,
                    "the " + std::to_string(rows) + " rows of \"" + manifest.values[id].name +
                        "\" cannot be cut into " + std::to_string(microbatches) +
                        " microbatches of " + std::to_string(Rows(info)),
                    "choose fewer --microbatches");
    }
  }
  // Returns the rows of every microbatch but the last.
  int64_t Rows(const TensorInfo& info) const {
    int64_t rows = info.shape.empty() ? 0 : info.shape[0];
    return std::max<int64_t>(1, (rows + microbatches - 1) / microbatches);
  }
  TensorSpec Spec(int input, int microbatch) const {
    const TensorInfo& info = *inputs[input];
    TensorSpec spec{DtypeOfSafetensors(info.dtype), info.shape, true};
    if (microbatches > 1)
      spec.sizes[0] = std::min(Rows(info), info.shape[0] - microbatch * Rows(info));
    return spec;
  }
  at::Tensor Microbatch(int input, int microbatch) const {
    TensorSpec spec = Spec(input, microbatch);
    at::Tensor out = at::empty(spec.sizes, spec.type);
    if (!out.nbytes()) return out;
    const size_t row = out.nbytes() / (microbatches > 1 ? out.size(0) : 1);
    file->Read(*inputs[input], microbatches > 1 ? microbatch * Rows(*inputs[input]) * row : 0,
               static_cast<char*>(out.data_ptr()), out.nbytes());
    return out;
  }
};

}  // namespace

void Infer(const RunOptions& options, Transport& transport) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  Phase(transport, "starting", [&] {
    UseMatMul(options.matmul, "--matmul");
    CheckOffload(options.offload_dir, options.offload_report, transport);
  });
  Session session;
  session.job.microbatches = options.microbatches;
  session.job.schedule = "gpipe";
  SessionOptions open{options.package, options.conf, options.weights};
  open.training = open.has_loss = false;
  open.agreed = AgreedText(options);
  open.device_map = options.device_map;
  InputFile feed;
  feed.microbatches = options.microbatches;
  std::map<int, std::vector<at::Tensor>> outputs;  // on this rank, by output
  OpenSession(
      session, open, transport,
      [&](int64_t, int microbatch) {
        if (!feed.file) {
          feed.Open(options.input, session.run.manifest);
          OutputFiles outputs(
              RunFiles(options.package, session.run.manifest, session.job,
                       {options.input, options.weights, options.conf, options.device_map}));
          if (options.output.empty()) throw Error("output", "its name is empty", "name a file");
          outputs.Add("--output", options.output, transport.rank() == 0);
          outputs.Add("--offload-report", options.offload_report, transport.rank() == 0);
        }
        std::vector<TensorSpec> specs;
        for (size_t i = 0; i < feed.inputs.size(); ++i)
          specs.push_back(feed.Spec(static_cast<int>(i), microbatch));
        return specs;
      },
      [&](int input, int64_t, int microbatch) { return feed.Microbatch(input, microbatch); },
      [&](int output, int microbatch, const at::Tensor& value) {
        outputs[output].resize(options.microbatches);
        outputs[output][microbatch] = value.contiguous();
      });
  int64_t sweeps = 1;
  if (options.on_request) sweeps += AnswerRequests(session, transport);
  RunStep(session, transport, sweeps - 1);

  // Rank 0 writes. Ranks that computed parts of an output send their sizes first, then the parts.
  std::string mine;
  for (auto& [output, parts] : outputs)
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].defined()) continue;  // computed by another replica
      mine += std::to_string(output) + ":" + std::to_string(i) + ":" +
              DtypeName(parts[i].scalar_type());
      for (int64_t size : parts[i].sizes()) mine += ":" + std::to_string(size);
      mine += ";";
    }
  std::vector<std::string> all = transport.AllGather(mine);
  int moved = 0;  // parts: each is progress
  std::vector<TensorToWrite> tensors;
  std::set<int> written;  // an output may be there twice
  std::map<int, at::Tensor> whole;
  if (transport.rank() != 0) {
    for (auto& [output, parts] : outputs)
      for (at::Tensor& part : parts)
        if (part.defined())
          transport.WaitFor(
              transport.Send(0, 1 + output, MakeBundle({part})),
              {.kind = Awaited::kTensor, .rank = 0, .microbatch = moved++, .sends = 1});
  } else {
    for (int rank = 1; rank < transport.size(); ++rank)
      for (const std::string& entry : Split(all[rank], ';')) {
        if (entry.empty()) continue;
        std::vector<std::string> fields = Split(entry, ':');
        int output = std::stoi(fields[0]);
        std::vector<int64_t> sizes;
        for (size_t i = 3; i < fields.size(); ++i) sizes.push_back(std::stoll(fields[i]));
        at::Tensor part = at::empty(sizes, DtypeOf(fields[2]));
        transport.WaitFor(transport.Recv(rank, 1 + output, MakeBundle({part})),
                          {.kind = Awaited::kTensor, .rank = rank, .microbatch = moved++});
        outputs[output].resize(options.microbatches);
        outputs[output][std::stoi(fields[1])] = part;
      }
    for (auto& [output, parts] : outputs)
      whole[output] = parts.size() == 1     ? parts[0]
                      : parts[0].dim() == 0 ? at::stack(parts)
                                            : at::cat(parts);
    const Manifest& manifest = session.run.manifest;
    for (int id : manifest.outputs) {
      if (manifest.values[id].producer >= 0 || !written.insert(id).second) continue;
      auto input = std::find(manifest.inputs.begin(), manifest.inputs.end(), id);
      tensors.push_back(CopyOf(*feed.file, *feed.inputs[input - manifest.inputs.begin()]));
    }
    for (const auto& [output, tensor] : whole) {
      if (!written.insert(manifest.outputs[output]).second) continue;
      tensors.push_back({session.run.manifest.values[session.run.manifest.outputs[output]].name,
                         SafetensorsDtype(tensor.scalar_type()),
                         tensor.sizes().vec(),
                         {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()}});
    }
  }
  Phase(transport, "writing", [&] {
    if (transport.rank() != 0) return;
    WriteSafetensors(options.output, std::move(tensors));
    std::printf("%s written to %s\n", Counted(written.size(), "output").c_str(),
                options.output.c_str());
  });
  Phase(transport, "writing", [&] {
    std::fputs(ReportOffload(session, transport, sweeps, options.offload_report).c_str(), stdout);
  });
}

}  // namespace pipewright
