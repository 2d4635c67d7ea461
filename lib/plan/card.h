// SPDX-License-Identifier: MIT
#pragma once
// Capacity and speed of a device and its links, for plans on other hosts.
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Bandwidths are those of large transfers, not of data sheets.
struct Card {
  std::string name;         // "h200"; "cpu": ranks share one host's memory
  std::string device;       // the driver's name, "NVIDIA H200"; "" for the CPU
  double memory_bytes = 0;  // of one device; for the CPU, a rank's share of the host
  double half_flops = 0;    // dense peak of 16-bit matrix products, FLOP/s
  double tf32_flops = 0, fp32_flops = 0;
  double product_flops = 0;       // measured rate of large 16-bit products, FLOP/s; 0: not measured
  bool has_fp8 = false;           // products in 8 bits: compute capability 8.9 and later
  double memory_bytes_per_s = 0;  // device memory, read plus write
  double host_bytes_per_s = 0;    // link to the host, one direction
  double link_bytes_per_s = 0;    // between devices of one host: busbw of a collective
  double network_bytes_per_s = 0;  // between hosts, per device
  double context_bytes = 0;        // memory of the driver's context and libraries before any tensor
};

std::vector<std::string> card_names();
// Throws Error(kInvalidArgument) with the known names.
Card card_named(const std::string& name);
// The card for a driver's device name; empty if unknown.
std::optional<Card> card_of_device(const std::string& device);

}  // namespace tessera
