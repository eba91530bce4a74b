package wire

import (
	"context"
	"time"
)

type FetchPartition struct {
	Topic              string
	ID                 [16]byte
	Partition          int32
	CurrentLeaderEpoch int32
	Offset             int64
	LastFetchedEpoch   int32
	LogStart           int64
	MaxBytes           int32
	Tag                any
}

type Limits struct {
	MinBytes, MaxBytes int32
	MaxWait            time.Duration
}

type EpochEnd struct {
	Epoch int32
	End   int64
}

type Leader struct{ ID, Epoch int32 }

type Fetched struct {
	Tag                                 any
	Topic                               string
	Partition                           int32
	Offset                              int64 // that was asked
	Err                                 error
	HighWatermark, LastStable, LogStart int64
	Diverging                           *EpochEnd
	Leader                              Leader
	Records                             []byte
}

type Response struct {
	Throttle   time.Duration
	Partitions []Fetched
}

func (r *Response) Retain()  {}
func (r *Response) Release() {}

type Session struct{}

func (c *Client) Session(broker int32) *Session                   { panic("unwritten") }
func (s *Session) Set(p FetchPartition)                           { panic("unwritten") }
func (s *Session) Forget(topic string, partition int32)           { panic("unwritten") }
func (s *Session) Send(ctx context.Context, lim Limits) error     { panic("unwritten") }
func (s *Session) Receive(ctx context.Context) (*Response, error) { panic("unwritten") }
func (s *Session) Close()                                         { panic("unwritten") }
