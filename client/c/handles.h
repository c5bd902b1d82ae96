// SPDX-License-Identifier: Apache-2.0
#pragma once
// The objects behind the opaque handles of cairn.h. Private to client/c.

#include <memory>

#include "client/c/device_movers.h"
#include "client/cpp/buffer.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"

struct cairn_client {
  std::unique_ptr<cairn::Client> client;
};
struct cairn_space {
  std::unique_ptr<cairn::Space> space;
  cairn::c::DeviceMovers movers{};  // destroyed before the space
};
struct cairn_buffer {
  cairn::Buffer buffer;
};
