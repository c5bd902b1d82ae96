// SPDX-License-Identifier: Apache-2.0
// Memory of a device and the host's mirror of it.
#include "tests/kernels/device/device.h"

#include <gtest/gtest.h>

#include "tests/kernels/device/device_bytes.h"

namespace cairn::kernels {
namespace {

TEST(DeviceBytesTest, ExchangesWhatKernelsMayWrite) {
  DeviceBytes written(20, true);
  DeviceBytes read(20, false);
  written.data()[3] = std::byte{1};
  read.data()[3] = std::byte{2};
  DeviceBytes::UploadAll();
  for (DeviceBytes* bytes : {&written, &read}) {
    std::byte found{0};
    device::CopyOut(&found, bytes->address() + 3, 1);
    EXPECT_EQ(found, bytes->data()[3]);
    device::Fill(bytes->address(), 9, 20);
  }
  EXPECT_EQ(DeviceBytes::DownloadAll(), "");
  EXPECT_EQ(written.data()[3], std::byte{9});
  EXPECT_EQ(read.data()[3], std::byte{2});
}

TEST(DeviceBytesTest, LiesAsItIsAskedTo) {
  const DeviceBytes other(3, true);
  for (const size_t guard : {0, 256}) {
    DeviceBytes::SetGuard(guard);
    DeviceBytes bytes(40, true, 6);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.address()) % 256, 6U);
  }
  DeviceBytes::SetGuard(0);
}

TEST(DeviceBytesTest, SeesWhatIsWrittenAround) {
  DeviceBytes::SetGuard(256);
  for (const int64_t at : {-256, -1, 20, 275}) {
    DeviceBytes bytes(20, true);
    DeviceBytes::UploadAll();
    EXPECT_EQ(DeviceBytes::DownloadAll(), "");
    device::Fill(bytes.address() + at, 0, 1);
    EXPECT_EQ(DeviceBytes::DownloadAll(), "kernels wrote before or behind 20 bytes") << at;
  }
  DeviceBytes::SetGuard(0);
}

}  // namespace
}  // namespace cairn::kernels
