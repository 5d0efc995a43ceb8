#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "plan/error.h"
#include "plan/safetensors.h"
#include "plan/text.h"
#include "runtime/dtype.h"
#include "runtime/train.h"

namespace pipewright {

namespace {

// The model's inputs from a file: all rows, cut into microbatches of equal size.
struct InputFile {
  std::unique_ptr<SafetensorsFile> file;
  std::vector<const TensorInfo*> inputs;
  int microbatches = 1;

  std::vector<TensorSpec> Open(const std::string& path, const Manifest& manifest) {
    file = std::make_unique<SafetensorsFile>(path);
    std::vector<TensorSpec> specs;
    for (int id : manifest.inputs) {
      const ValueInfo& value = manifest.values[id];
      const TensorInfo& info = file->At(value.name);
      TensorSpec spec{DtypeOfSafetensors(info.dtype), info.shape, true};
      if (microbatches > 1) {
        if (spec.sizes.empty() || spec.sizes[0] % microbatches)
          throw Error(path,
                      "\"" + value.name + "\" cannot be cut into " + std::to_string(microbatches) +
                          " equal microbatches",
                      "choose --microbatches so that it divides the first dimension");
        spec.sizes[0] /= microbatches;
      }
      inputs.push_back(&info);
      specs.push_back(std::move(spec));
    }
    return specs;
  }
  at::Tensor Microbatch(int input, int microbatch, const TensorSpec& spec) const {
    at::Tensor out = at::empty(spec.sizes, spec.type);
    if (out.nbytes())
      file->Read(*inputs[input], microbatch * out.nbytes(), static_cast<char*>(out.data_ptr()),
                 out.nbytes());
    return out;
  }
};

}  // namespace

void Infer(const RunOptions& options, Transport& transport) {
  Session session;
  session.job.microbatches = options.microbatches;
  session.job.schedule = "gpipe";
  SessionOptions open{options.package, options.conf, options.weights};
  open.training = open.has_loss = false;
  open.agreed = AgreedText(options);
  InputFile feed;
  feed.microbatches = options.microbatches;
  std::vector<TensorSpec> specs;
  std::map<int, std::vector<at::Tensor>> outputs;  // of this rank, by output
  OpenSession(
      session, open, transport,
      [&] { return specs = feed.Open(options.input, session.run.manifest); },
      [&](int input, int microbatch) { return feed.Microbatch(input, microbatch, specs[input]); },
      [&](int output, int microbatch, const at::Tensor& value) {
        outputs[output].resize(options.microbatches);
        outputs[output][microbatch] = value;
      });
  RunStep(session, transport, 0);

  // Rank 0 writes; the rank that made an output sends it, its sizes ahead.
  std::string mine;
  for (auto& [output, parts] : outputs) {
    at::Tensor whole = parts.size() == 1     ? parts[0]
                       : parts[0].dim() == 0 ? at::stack(parts)
                                             : at::cat(parts);
    parts = {whole};
    mine += std::to_string(output) + ":" + DtypeName(whole.scalar_type());
    for (int64_t size : whole.sizes()) mine += ":" + std::to_string(size);
    mine += ";";
  }
  std::vector<std::string> all = transport.AllGather(mine);
  auto bundle = [](at::Tensor tensor) {
    Bundle out;
    out.regions.push_back({tensor.data_ptr(), tensor.nbytes()});
    out.owner = std::make_shared<at::Tensor>(std::move(tensor));
    return out;
  };
  std::string error;
  if (transport.rank() != 0) {
    for (auto& [output, parts] : outputs)
      transport.Wait(transport.Send(0, 1 + output, bundle(parts[0])));
  } else {
    std::vector<TensorToWrite> tensors;
    std::map<int, at::Tensor> whole;
    for (int rank = 0; rank < transport.size(); ++rank)
      for (const std::string& entry : Split(all[rank], ';')) {
        if (entry.empty()) continue;
        std::vector<std::string> fields = Split(entry, ':');
        int output = std::stoi(fields[0]);
        std::vector<int64_t> sizes;
        for (size_t i = 2; i < fields.size(); ++i) sizes.push_back(std::stoll(fields[i]));
        at::Tensor tensor = rank == 0 ? outputs[output][0] : at::empty(sizes, DtypeOf(fields[1]));
        if (rank != 0) transport.Wait(transport.Recv(rank, 1 + output, bundle(tensor)));
        whole[output] = tensor;
      }
    const Manifest& manifest = session.run.manifest;
    std::set<int> written;  // an output may be there twice
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
    try {
      WriteSafetensors(options.output, std::move(tensors));
      std::printf("%zu outputs written to %s\n", written.size(), options.output.c_str());
    } catch (const std::exception& e) {
      error = e.what();
    }
  }
  Vote(transport, "writing", error);
}

}  // namespace pipewright
