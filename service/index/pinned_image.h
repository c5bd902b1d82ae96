// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the header of a pinned image and checks it against what the index knows of the image. A
// CRC says that bytes are as they were written. It does not say that they are the bytes asked for:
// a tier that reads the wrong place finds a valid image of another block there.

#include <cstddef>
#include <span>
#include "codecs/image/image.h"

#include "codecs/types/error.h"
#include "proto/block_key.h"
#include "service/index/pin.h"

namespace cairn {

// Whether header and directory are those of the pinned copy. Errors as ParsePinned().
codecs::Error CheckPinned(const ResidentPin& pin, const codecs::ImagePrefix& prefix,
                          const proto::Fingerprint& space);

// Parses the image; its tiles are not checked. `bytes` are what was read of the pinned copy: where
// they can be addressed, pin.bytes(). `space` is the fingerprint of the pin's space.
// Errors: as codecs::ParseImage(); kMismatch where the header names another space, key, group,
//         slice, token count or position than the pin's facts, or with its directory is another
//         than the copy's; kNoProfile where it names another
//         side object than the one that it was published with.
codecs::Error ParsePinned(const ResidentPin& pin, std::span<const std::byte> bytes,
                          const proto::Fingerprint& space, codecs::ImageView* view);

}  // namespace cairn
