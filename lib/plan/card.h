// SPDX-License-Identifier: MIT
#pragma once
// What a device can hold, and how fast it and its links are: for plans of hosts that are not here.
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Bandwidths are those that large transfers reach, not those of data sheets.
struct Card {
  std::string name;         // "h200"; "cpu": ranks share one host's memory
  std::string device;       // as the driver says it, "NVIDIA H200"; "" for the CPU
  double memory_bytes = 0;  // of one device; what one rank of a host may use of it for the CPU
  double half_flops = 0;    // dense peak of 16-bit matrix products, FLOP/s
  double tf32_flops = 0, fp32_flops = 0;
  double product_flops = 0;       // what large 16-bit products reach of half_flops; 0: not measured
  double memory_bytes_per_s = 0;  // the device's own, read and written
  double host_bytes_per_s = 0;    // the link to the host, one way
  double link_bytes_per_s = 0;    // between devices of a host: bus bandwidth of a collective
  double network_bytes_per_s = 0;  // between hosts, for each device
  double context_bytes = 0;        // what the driver and its libraries take before any tensor
};

std::vector<std::string> card_names();
// Throws Error(kInvalidArgument) with the names there are.
Card card_named(const std::string& name);
// The card of this driver's name; nothing for one that is not known.
std::optional<Card> card_of_device(const std::string& device);

}  // namespace tessera
