// SPDX-License-Identifier: MIT
// The hub's inquiry: which rank failed, and which ranks it affects.
#include <algorithm>

#include "lib/comm/control/hub.h"

namespace tessera::control {

Inquiry& Hub::inquiry() {
  if (inquiry_) return *inquiry_;
  std::vector<std::string> hosts(static_cast<size_t>(size_));
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0) hosts[static_cast<size_t>(peer.rank)] = peer.host;
  }
  return inquiry_.emplace(std::move(hosts));
}

void Hub::ask(int rank) {
  inquiry_->expect(rank);
  const Call& call = inquiry_->call();
  send_to(rank, Kind::kAsk, call.communicator.empty() ? "" : call.pack());
}

void Hub::ask_all() {
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0 && !gone_[static_cast<size_t>(peer.rank)]) ask(peer.rank);
  }
}

void Hub::inquire(const std::string& cause) {
  if (aborted_) return;
  const bool begins = !inquiry_;
  inquiry().add(cause);
  if (begins) ask_all();
}

void Hub::inquire(const Report& report) {
  if (aborted_) return;
  const bool begins = !inquiry_;
  inquiry().add(report);
  if (begins) ask_all();
}

void Hub::end_inquiry_if_due() {
  if (!inquiry_ || aborted_) return;
  for (size_t r = 0; r < gone_.size(); ++r) {
    if (gone_[r]) inquiry_->forget(static_cast<int>(r));
  }
  for (const int rank : inquiry_->to_ask_again()) {
    if (!gone_[static_cast<size_t>(rank)]) ask(rank);
  }
  if (!inquiry_->is_over()) return;
  const Error error = inquiry_->result();
  end_all(Kind::kFailure, pack({std::to_string(static_cast<int>(error.code())), error.what()}), -1);
}

}  // namespace tessera::control
