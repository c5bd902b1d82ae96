// SPDX-License-Identifier: Apache-2.0
#pragma once
// The error codes of codecs/. Nothing in codecs/ throws, logs or allocates on a path that moves
// payload. A caller translates the codes once, outside the folder.

#include <cstdint>
#include <string_view>

namespace cairn::codecs {

enum class [[nodiscard]] Error : uint8_t{
    kOk = 0,
    // Errors in the caller's arguments.
    kInvalidShape,    // a kind, dtype, dim or token count out of its limits
    kInvalidSlice,    // empty, or outside its group or image
    kTooLarge,        // the image could exceed kImageBytesMax or kTilesMax
    kSourceSize,      // the source is not exactly the slice's payload
    kTargetTooSmall,  // nothing was written
    kUnknownRecipe,   // KnownRecipes() lists the known ones
    kUnknownBackend,  // KnownBackends() lists the known ones
    kNoSuchCpu,       // the backend is known, but this CPU lacks its instructions
    kBackendFault,    // the backend was forced, but failed its self-test
    kMismatch,        // gathered images differ in more than their slice
    kIncomplete,      // gathered images do not cover the slice
    kNotDemotable,    // the target recipe cannot be computed from the image
    kNoBank,          // the recipe needs a bank; none was given, or one for another image
    kNoProfile,       // the recipe needs a profile; none was given, or one for another image
    // Bytes that are not an image, or have changed since they were written.
    kTruncated,     // shorter than the header states
    kBadMagic,      // not an image
    kBadVersion,    // a version this code does not know
    kBadFlags,      // a flag this code does not know
    kUnknownUnit,   // a coding unit or a symbol mode this code does not know
    kBadHeader,     // a header field out of its limits
    kBadDirectory,  // a directory entry differs from the values that its form computes
    kBadPadding,    // a byte that must be zero is not
    kBadChecksum,   // CRC32C of header and directory, or of a tile
    kBadTile,       // no encoder writes a tile with these rows or parameters
    kBadBank,       // a part of a bank breaks the rules of docs/internals/formats/bank.md
    kBadProfile,    // a part of a profile breaks the rules of docs/internals/formats/profile.md
};

// Returns the name of the enumerator in words and without its k: "bad checksum". Static storage.
[[nodiscard]] std::string_view Name(Error error);

}  // namespace cairn::codecs
