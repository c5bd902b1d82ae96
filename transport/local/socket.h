// SPDX-License-Identifier: Apache-2.0
#pragma once
// The unix socket between clients and the daemon: the messages on it, the packets that carry the
// messages, and the file at which the daemon listens.

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "proto/frame.h"

namespace cairn::transport {

// --- Messages ------------------------------------------------------------------------------------
// The format of a message on the unix socket: an envelope of 40 bytes with the payload's place in
// the client's memory, then the frame. A SOCK_SEQPACKET packet is one message, or several if the
// peers have agreed on that. docs/internals/formats/frame.md shows the layout.

enum class Direction : uint8_t {
  kRequest = 1,
  kReply = 2,
  // Used only if the client has mapped the daemon's memory:
  kLendableRequest = 3,  // a request without a payload; the payload of its reply may be lent
  kLoan = 4,             // a reply whose payload is lent
  kLoanOfPlaces = 5,     // a reply whose payload is lent in several places
};

struct Envelope {
  Direction direction = Direction::kRequest;
  // In a request: where the payload is. In a reply: where it was written. In a lendable request:
  // where the client gives the loan back. In a loan: where the payload is in the daemon's memory.
  // In a loan of places: their number. They are listed where the reply's payload may be written.
  uint64_t payload_place = 0;
  uint64_t payload_bytes = 0;
  // In a request: where a reply's payload may be written, and its maximum size. In a reply: both
  // are 0. In a loan: reply_place is the index of the loan's word (loans.h), and
  // reply_capacity_bytes is the loan's number.
  uint64_t reply_place = 0;
  uint64_t reply_capacity_bytes = 0;
};

inline constexpr size_t kEnvelopeBytes = 40;
inline constexpr size_t kMessageBytesMax = kEnvelopeBytes + proto::kFrameBytesMax;
inline constexpr size_t kPacketBytesMax = proto::kBatchMax * kMessageBytesMax;

struct Message {
  Envelope envelope;
  proto::FrameBytes frame;  // has at least the size of a head; not parsed
  uint64_t seq = 0;         // sequence number of the frame
};

struct MessageBytes {
  std::array<std::byte, kMessageBytesMax> data;
  size_t size = 0;
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

MessageBytes Serialize(const Envelope& envelope, const proto::FrameBytes& frame);

// Parses untrusted bytes. Errors: InvalidArgument, naming the field. The caller must check that the
// places are inside the client's region. If `is_mapped`, also accepts kLendableRequest as a
// request, and kLoan and kLoanOfPlaces as a reply.
absl::StatusOr<Message> ParseMessage(std::span<const std::byte> bytes, Direction expected,
                                     bool is_mapped = false);

// Returns the first message of a packet. The message's envelope gives its length. If the packet is
// shorter, returns the whole packet.
std::span<const std::byte> FirstMessage(std::span<const std::byte> packet);

// Messages that wait to be sent together in one packet.
// Thread-safety: Thread-compatible.
class Batch {
 public:
  bool is_empty() const { return count_ == 0; }
  bool is_full() const { return count_ == proto::kBatchMax; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // REQUIRES: !is_full().
  void Add(const MessageBytes& message);
  void Clear();

 private:
  size_t count_ = 0;
  std::vector<std::byte> bytes_;  // keeps its memory
};

// --- Packets -------------------------------------------------------------------------------------
// Sends and receives packets with file descriptors over a SOCK_SEQPACKET socket, without blocking.
//
// The last close() of a descriptor that a peer has sent can block: for hours if it is a TCP socket
// that lingers, forever if it is a file of a FUSE mount. If nobody receives a descriptor, the
// kernel closes it when it closes the socket in which the descriptor waits.
struct Packet {
  enum class Outcome {
    kPacket,
    kNothing,  // no packet is waiting
    kClosed,   // the other side is gone
  };
  Outcome outcome = Outcome::kNothing;
  std::array<std::byte, kPacketBytesMax> data;
  size_t size = 0;
  bool is_cut = false;  // it was longer than any packet, or descriptors were lost
  std::vector<Fd> fds;  // close on exec
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

// Receives one packet. The result owns every descriptor that came with it.
Packet ReceivePacket(int socket);

// Sends `bytes` and copies of at most two descriptors. Sends all of it or nothing. Errors:
// ResourceExhausted (the socket is full), Unavailable (the peer is gone).
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// SendPacket() with one descriptor, or with none if `fd` is -1.
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, int fd = -1);

// Makes the kernel refuse later packets with descriptors: their sender gets EPERM. Descriptors that
// have arrived stay. Sockets accepted from a listening socket inherit this. Returns false if the
// kernel cannot do it (before Linux 6.16).
bool RefuseDescriptors(int socket);
// Shuts the connection down in both directions, and drops the packets that wait in it. Returns
// false if a descriptor waits in it, so that closing the socket may block.
[[nodiscard]] bool EndConnection(int socket);
// Closes a socket and the descriptors that came through it. May block, but is less likely to than
// close() alone.
void CloseSlowly(Fd socket, std::vector<Fd> fds);

// --- Socket files --------------------------------------------------------------------------------
// A listening socket at a path. The daemon uses SOCK_SEQPACKET for the data plane and SOCK_STREAM
// for the control plane.
//
// The file can be removed or replaced while the socket is open. Keep() repairs that.
//
// Thread-safety: Thread-compatible. The number that get() returns never changes, so other threads
//                may accept connections while Keep() runs. Move-only. Destroying it removes the
//                file, even if the file was moved to another path.
class SocketFile {
 public:
  // Makes the socket file with `mode`. Use 0660, unless only our own user may connect. If the
  // folder is missing, makes it with mode 0700; the folder's parent must exist. Replaces a socket
  // file on which nobody listens, but no other file. Errors: InvalidArgument (the path is empty or
  // too long), FailedPrecondition (another process listens there, the path is not a socket, or
  // FolderRiskOf() refuses the folder), Unavailable (other errors of the system).
  static absl::StatusOr<SocketFile> Listen(const std::string& path, int type = SOCK_SEQPACKET,
                                           mode_t mode = 0660);

  SocketFile(SocketFile&& source) noexcept = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

  // Checks that the file at the path is still ours. If it is missing, or was replaced by a file on
  // which nobody listens, makes it again and returns true. In this case the descriptor of get()
  // refers to another socket: add it to an epoll again, and restart a running poll(). Errors: those
  // of Listen(); the old socket stays open.
  absl::StatusOr<bool> Keep();

  int get() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  SocketFile(std::string path, int type, mode_t mode, Fd socket)
      : path_(std::move(path)), type_(type), mode_(mode), socket_(std::move(socket)) {}
  void RemoveOurs() const;

  std::string path_;
  int type_ = 0;
  mode_t mode_ = 0;
  Fd socket_;
  Fd file_;  // refers to the file, even if the file is moved
};

// The risk that other users pose to a socket in a folder.
struct FolderRisk {
  bool is_refused = false;  // the daemon does not start
  std::string text;         // describes the risk; empty: there is none, except from root
};
// Examines the folder of the socket at `path`, for a daemon that runs as user `owner`. A user who
// can write to the folder can replace the daemon's socket, and then gets all its connections.
//
// - Refused: a folder to which everybody can write, without the sticky bit. A mount point is
//   exempt: a container's emptyDir is one, and the daemon cannot choose its mode.
// - Refused: a folder /tmp/cairn-* that not only the owner can access. Anybody could make a folder
//   of that name first.
FolderRisk FolderRiskOf(const std::string& path, uid_t owner);

// Connects to the socket at `path`. The result is non-blocking, and closed on exec. Errors:
// Unavailable (nobody listens), DeadlineExceeded (the listener's backlog stays full),
// InvalidArgument (the path is empty or too long).
absl::StatusOr<Fd> ConnectSocketFile(const std::string& path, absl::Time deadline);

}  // namespace cairn::transport
