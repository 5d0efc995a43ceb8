#include "runtime/session_losses.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "runtime/optimizer/loss.h"

namespace pipewright {

static std::string LossName(const Session& session, size_t k) {
  return session.job.path + ": loss" +
         (session.job.losses.size() > 1 ? "[" + std::to_string(k) + "]" : "");
}

void CheckLosses(Session& session, bool training) {
  const Manifest& manifest = session.run.manifest;
  std::vector<std::string> names;
  for (int id : manifest.outputs) names.push_back(manifest.values[id].name);
  int trained = 0, producer = -1;
  for (size_t k = 0; k < session.job.losses.size(); ++k) {
    LossJob& loss = session.job.losses[k];
    const std::string where = LossName(session, k) + ".output";
    if (!loss.output_name.empty()) {
      auto found = std::find(names.begin(), names.end(), loss.output_name);
      if (found == names.end())
        throw Error(where,
                    "the model has no output \"" + loss.output_name + "\"" +
                        Suggest(loss.output_name, names),
                    "its outputs: " + Join(names, ", "));
      loss.output = static_cast<int>(found - names.begin());
    }
    if (loss.output >= static_cast<int>(names.size()))
      throw Error(where, "the model has no output " + std::to_string(loss.output),
                  "its outputs: " + Join(names, ", "));
    const ValueInfo& value = manifest.values[manifest.outputs[loss.output]];
    if (value.kind != ValueKind::kTensor || value.producer < 0)
      throw Error(where, "output " + std::to_string(loss.output) +
                             " is not a tensor that the model computes");
    // The number of classes is fixed; a dynamic size may equal it only by chance.
    auto fixed = [](const std::string& size) {
      return size.find_first_not_of("0123456789") == std::string::npos;
    };
    if (value.shape.size() > 2 && fixed(value.shape[1]) != fixed(value.shape.back()))
      loss.fixed_dim = fixed(value.shape[1]) ? 1 : static_cast<int>(value.shape.size()) - 1;
    trained += value.gradient;
    if (k == 0) producer = value.producer;
  }
  if (!training || trained) return;
  const int stage = session.run.conf.module_to_stage[producer];
  throw Error("step 1, rank " + std::to_string(session.run.conf.stage_to_ranks[stage][0]) +
                  ", stage " + std::to_string(stage),
              "the loss does not depend on any trainable weight",
              "train what is frozen (\"freeze\", requires_grad), or take the loss from another "
              "output: " +
                  Join(names, ", "));
}

// Checks an output that is the loss.
static void CheckNumber(const Session& session, const std::vector<TensorSpec>& specs, size_t k) {
  const Manifest& manifest = session.run.manifest;
  const int output = session.job.losses[k].output;
  auto one = [](const TensorSpec& spec) {
    return std::all_of(spec.sizes.begin(), spec.sizes.end(), [](int64_t n) { return n == 1; });
  };
  if (one(specs[manifest.outputs[output]])) return;
  std::string numbers;
  for (int id : manifest.outputs)
    if (manifest.values[id].producer >= 0 && specs[id].known && one(specs[id]))
      numbers += (numbers.empty() ? "" : ", ") + Quote(manifest.values[id].name);
  const std::string& name = manifest.values[manifest.outputs[output]].name;
  throw Error(LossName(session, k) + ".output",
              "output " + std::to_string(output) + " of the model, " + name + ", has sizes " +
                  ShapeText(specs[manifest.outputs[output]].sizes) + "; a loss is one number",
              numbers.empty() ? "have it compared with targets: {\"type\": \"cross_entropy\", "
                                "\"mse\" or another, \"output\": \"" +
                                    name + "\"}"
                              : "outputs of one number: " + numbers);
}

void CheckTargets(const Session& session, const std::vector<TensorSpec>& specs,
                  Microbatches& source) {
  for (size_t k = 0; k < session.job.losses.size(); ++k) {
    const LossJob& loss = session.job.losses[k];
    const int index = static_cast<int>(k);
    const TensorSpec& output = specs[session.run.manifest.outputs[loss.output]];
    const bool computed = loss.kind == LossJob::kOutput;
    const TensorSpec target =
        computed ? TensorSpec{at::kFloat, {}, false} : source.Target(index, 0, 0);
    if (!output.known || (!computed && !target.known)) continue;
    if (computed) CheckNumber(session, specs, k);
    CheckLoss(loss, output, target, source.TargetName(index));
  }
}

void GatherLosses(Session& session) {
  const std::vector<int>& stages = session.stages->loss_stages();
  if (stages.empty()) return;
  const std::vector<std::vector<int>>& ranks = session.run.conf.stage_to_ranks;
  std::set<int> senders;
  for (int stage : stages) senders.insert(ranks[stage].begin(), ranks[stage].end());
  const int root = ranks[stages[0]][0], rank = session.transport.rank();
  senders.erase(root);
  if (rank != root && !senders.count(rank)) return;
  LossTerms& terms = session.stages->terms();
  const size_t count = terms[0].size();
  using Entries = std::shared_ptr<std::vector<LossTerm>>;
  auto bundle = [](Entries entries) {
    Bundle out;
    out.regions.push_back({entries->data(), entries->size() * sizeof(LossTerm)});
    out.owner = std::move(entries);
    return out;
  };
  const int tag = session.transport.max_tag() - kLossTag;
  if (rank != root) {
    Entries mine = std::make_shared<std::vector<LossTerm>>();
    for (const std::vector<LossTerm>& of_loss : terms)
      mine->insert(mine->end(), of_loss.begin(), of_loss.end());
    session.transport.Send(root, tag, bundle(std::move(mine)));
    return;
  }
  std::map<int, std::pair<Entries, Token>> arriving;
  for (int sender : senders) {
    Entries entries = std::make_shared<std::vector<LossTerm>>(stages.size() * count);
    Token token = session.transport.Recv(sender, tag, bundle(entries));
    arriving[sender] = {std::move(entries), std::move(token)};
  }
  for (auto& [sender, message] : arriving)
    session.transport.WaitFor(message.second, {Awaited::kLosses, sender});
  for (size_t k = 0; k < stages.size(); ++k)
    for (size_t m = 0; m < count; ++m) {
      const std::vector<int>& replicas = ranks[stages[k]];
      if (auto from = arriving.find(replicas[m % replicas.size()]); from != arriving.end())
        terms[k][m] = from->second.first->at(k * count + m);
    }
}

void KeepLosses(Session& session) {
  if (!session.stages->has_losses()) return;
  const LossTerms& terms = session.stages->terms();
  session.terms.resize(terms.size());
  for (size_t k = 0; k < terms.size(); ++k)
    session.terms[k].insert(session.terms[k].end(), terms[k].begin(), terms[k].end());
  for (size_t m = 0; m < terms[0].size(); ++m)
    session.losses.push_back(TotalLoss(session.job, terms, m));
}

void AddLosses(Session& session, Evaluation& evaluation) {
  if (!session.stages->has_losses()) return;
  const LossTerms& terms = session.stages->terms();
  evaluation.losses.resize(terms.size());
  for (size_t k = 0; k < terms.size(); ++k) {
    Evaluation::Sum& sum = evaluation.losses[k];
    sum.weight = session.job.losses[k].weight;
    for (const LossTerm& term : terms[k]) {
      sum.loss += term.loss * static_cast<double>(term.count);
      sum.targets += term.count;
      sum.correct += term.correct;
    }
  }
}

}  // namespace pipewright
