#include "runtime/watch/stop.h"

namespace pipewright {

bool StopAgreement::AfterStep() {
  if (transport_.size() == 1) return transport_.status().stop_requested();
  auto message = [](std::shared_ptr<char> byte) { return Bundle{{{byte.get(), 1}}, byte}; };
  if (transport_.rank() == 0) {
    if (told_) return true;
    std::erase_if(sent_, [&](const Token& token) { return transport_.Test(token); });
    told_ = transport_.status().stop_requested();
    auto byte = std::make_shared<char>(told_);
    for (int peer = 1; peer < transport_.size(); ++peer)
      sent_.push_back(transport_.Send(peer, transport_.max_tag() - kStopTag, message(byte)));
    return false;
  }
  if (token_) {
    transport_.WaitFor(token_, {Awaited::kStop, 0});
    token_ = nullptr;
    if (*arriving_) return true;
  }
  arriving_ = std::make_shared<char>();
  token_ = transport_.Recv(0, transport_.max_tag() - kStopTag, message(arriving_));
  return false;
}

void StopAgreement::Finish() {
  if (token_) transport_.WaitFor(token_, {Awaited::kStop, 0});
  token_ = nullptr;
  for (const Token& token : sent_) transport_.WaitFor(token, {Awaited::kEveryRank});
  sent_.clear();
}

}  // namespace pipewright
