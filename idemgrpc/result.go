package idemgrpc

import (
	"encoding/binary"
	"fmt"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idem-go/idem"
)

// An answer is stored with its code, the message of an OK or the
// google.rpc.Status of an error as body, and in Meta the type of the message and
// the kept headers and trailers.
const (
	metaType    = "type"
	metaHeader  = "header "  // and the name
	metaTrailer = "trailer " // and the name
)

// encode is deterministic: the fingerprint of a request must not depend on the
// order of a map.
var encode = proto.MarshalOptions{Deterministic: true}

// asProto returns v as a message, or nil if it is none.
func asProto(v any) proto.Message {
	switch m := v.(type) {
	case proto.Message:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}

// resultOf returns a handler's answer as it is stored.
func resultOf(resp any, s *status.Status) (idem.Result, error) {
	r := idem.Result{Code: int(s.Code()), Meta: map[string]string{}}
	m := proto.Message(s.Proto())
	if s.Code() == codes.OK {
		if m = asProto(resp); m == nil {
			return r, fmt.Errorf("idemgrpc: the response of type %T is not a protocol buffer", resp)
		}
		r.Meta[metaType] = string(m.ProtoReflect().Descriptor().FullName())
	}
	var err error
	r.Body, err = encode.Marshal(m)
	return r, err
}

// answerOf returns the answer that a result stands for.
func answerOf(r idem.Result) (resp any, err error) {
	if codes.Code(r.Code) != codes.OK {
		var s spb.Status
		if err := proto.Unmarshal(r.Body, &s); err != nil {
			return nil, fmt.Errorf("idemgrpc: %w: the stored status: %w", idem.ErrCorrupt, err)
		}
		if r.Omitted { // the details were too much
			s.Message = "idem: the message of this error was not kept"
		}
		s.Code = int32(r.Code)
		return nil, status.ErrorProto(&s)
	}
	if r.Omitted {
		return nil, omittedResponse.err()
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(r.Meta[metaType]))
	if err != nil {
		// A type that this program does not know by name has the same bytes as a
		// message of unknown fields.
		raw := new(emptypb.Empty)
		raw.ProtoReflect().SetUnknown(r.Body)
		return raw, nil
	}
	m := kind.New().Interface()
	if err := proto.Unmarshal(r.Body, m); err != nil {
		return nil, fmt.Errorf("idemgrpc: %w: the stored response is not of type %s: %w", idem.ErrCorrupt, r.Meta[metaType], err)
	}
	return m, nil
}

// keep adds the values of the named metadata to a result.
func keep(r *idem.Result, prefix string, md metadata.MD, names []string) {
	for _, name := range names {
		var all []byte
		for _, value := range md.Get(name) { // any bytes, where the name ends with -bin
			all = binary.AppendUvarint(all, uint64(len(value)))
			all = append(all, value...)
		}
		if all != nil {
			r.Meta[prefix+name] = string(all)
		}
	}
}

// kept returns the metadata that keep has added.
func kept(r idem.Result, prefix string) metadata.MD {
	md := metadata.MD{}
	for meta, all := range r.Meta {
		name, ok := strings.CutPrefix(meta, prefix)
		for rest := []byte(all); ok && len(rest) > 0; {
			size, n := binary.Uvarint(rest)
			if n <= 0 || size > uint64(len(rest)-n) {
				break
			}
			md.Append(name, string(rest[n:n+int(size)]))
			rest = rest[n+int(size):]
		}
	}
	return md
}
