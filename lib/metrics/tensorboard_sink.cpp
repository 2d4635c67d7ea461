// SPDX-License-Identifier: MIT
// TensorBoard event files: TFRecord frames (length, CRC-32C, bytes, CRC-32C) of tensorflow.Event
// messages in protocol buffer wire format. Formats: tensorflow/core/util/event.proto and
// tensorflow/core/lib/io/record_writer.h.
#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <optional>

#include "lib/core/host_name.h"
#include "lib/core/integer_of.h"
#include "lib/metrics/append_file.h"
#include "tessera/core/error.h"
#include "tessera/metrics/sink.h"

namespace tessera::metrics {
namespace {

// CRC-32C (Castagnoli), reflected polynomial 0x82F63B78, masked as in TFRecord.
uint32_t masked_crc(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

template <typename T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

// Protocol buffer fields: the key is (number << 3) | wire type.
std::string fixed_field(int number, double value) {
  return varint(number << 3 | 1) + little_endian(value);
}
std::string fixed_field(int number, float value) {
  return varint(number << 3 | 5) + little_endian(value);
}
std::string varint_field(int number, int64_t value) {
  return varint(number << 3) + varint(static_cast<uint64_t>(value));
}
std::string bytes_field(int number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

class TensorboardSink final : public Sink {
 public:
  explicit TensorboardSink(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    check(!error, ErrorCode::kDataLoss, directory, ": ", error.message());
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const double seconds = std::chrono::duration<double>(now).count();
    file_.emplace(concat(directory, "/events.out.tfevents.", static_cast<int64_t>(seconds), ".",
                         host_name(), ".", getpid()));
    write_record(fixed_field(1, seconds) + bytes_field(3, "brain.Event:2"));
  }

  void write(const Event& event) override {
    if (event.name != "step" && event.name != "eval") return;
    std::string summary;
    for (const auto& [key, value] : event.fields) {
      const auto* number = std::get_if<double>(&value);
      if (number == nullptr || key == "time_unix_s" || key == "elapsed_s") continue;
      const std::string tag = key.starts_with("eval_") ? "eval/" + key.substr(5)
                              : event.name == "eval"   ? "eval/" + key
                                                       : "train/" + key;
      summary += bytes_field(1, bytes_field(1, tag) + fixed_field(2, static_cast<float>(*number)));
    }
    const double time = event.number("time_unix_s").value_or(0);
    const auto step = integer_of(event.number("step").value_or(0));
    write_record(fixed_field(1, time) + varint_field(2, step) + bytes_field(5, summary));
  }

 private:
  void write_record(const std::string& message) {
    const std::string length = little_endian<uint64_t>(message.size());
    file_->write(length + little_endian(masked_crc(length)) + message +
                 little_endian(masked_crc(message)));
  }

  std::optional<AppendFile> file_;
};

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(const std::string& directory) {
  return std::make_unique<TensorboardSink>(directory);
}

}  // namespace tessera::metrics
