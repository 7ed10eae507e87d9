// Publishes and consumes with go-amqp, see the README.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	waitForAnswers = 30 * time.Second
	noCredit       = 5 * time.Second
)

type ask struct {
	Publish     *string  `json:"publish"`
	To          []string `json:"to"`
	Consume     string   `json:"consume"`
	Count       int      `json:"count"`
	Seconds     float64  `json:"seconds"`
	Outstanding int      `json:"outstanding"`
	Size        int      `json:"size"`
	PerSecond   float64  `json:"per_s"`
	Settled     bool     `json:"settled"`
	Credit      int32    `json:"credit"`
	Drain       int      `json:"drain"`
}

type report struct {
	Sent     int      `json:"sent"`
	Accepted []int    `json:"accepted"`
	Rejected []int    `json:"rejected"`
	Released []int    `json:"released"`
	Reasons  []string `json:"reasons"`
	Received []int    `json:"received"`
	Numbers  []int    `json:"numbers"`
	Sha256   string   `json:"sha256"`
	Error    string   `json:"error"`
}

type sent struct {
	number  int
	receipt amqp.SendReceipt
}

func countNow(counts *[]int, started time.Time) {
	second := int(time.Since(started).Seconds())
	for len(*counts) <= second {
		*counts = append(*counts, 0)
	}
	(*counts)[second]++
}

func (told *report) answered(number int, state amqp.DeliveryState, started time.Time) {
	reason := ""
	switch state := state.(type) {
	case *amqp.StateAccepted:
		countNow(&told.Accepted, started)
		return
	case *amqp.StateRejected:
		told.Rejected = append(told.Rejected, number)
		if state.Error != nil {
			reason = fmt.Sprintf("%s: %s", state.Error.Condition, state.Error.Description)
		}
	default:
		told.Released = append(told.Released, number)
	}
	if len(told.Reasons) < 5 && !slices.Contains(told.Reasons, reason) {
		told.Reasons = append(told.Reasons, reason)
	}
}

func publish(session *amqp.Session, asked ask, told *report, started time.Time) error {
	options := &amqp.SenderOptions{}
	if asked.Settled {
		options.SettlementMode = amqp.SenderSettleModeSettled.Ptr()
	}
	sender, err := session.NewSender(context.Background(), *asked.Publish, options)
	if err != nil {
		return err
	}
	end := started.Add(time.Duration(asked.Seconds * float64(time.Second)))
	// Ends links that have no credit long after the others are done. A deadline would also apply to the write of each
	// frame, which then fails with another error.
	sending, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(time.Until(end.Add(noCredit)), cancel).Stop()
	// A message being waited for is not in it any more.
	unanswered := make(chan sent, max(0, asked.Outstanding-1))
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for each := range unanswered {
			state, err := each.receipt.Wait(context.Background())
			if err != nil {
				failed <- err
				return
			}
			told.answered(each.number, state, started)
		}
	}()
	for told.Sent < asked.Count && time.Now().Before(end) {
		if asked.PerSecond > 0 {
			time.Sleep(time.Until(started.Add(time.Duration(float64(told.Sent) / asked.PerSecond * float64(time.Second)))))
		}
		body := []byte(strconv.Itoa(told.Sent) + " ")
		for len(body) < asked.Size {
			body = append(body, '.')
		}
		message := amqp.NewMessage(body)
		if len(asked.To) > 0 {
			message.Properties = &amqp.MessageProperties{To: &asked.To[told.Sent%len(asked.To)]}
		}
		if asked.Settled {
			if err = sender.Send(sending, message, nil); err == nil {
				countNow(&told.Accepted, started)
			}
		} else {
			var receipt amqp.SendReceipt
			if receipt, err = sender.SendWithReceipt(sending, message, nil); err == nil {
				unanswered <- sent{told.Sent, receipt}
			}
		}
		// If the time ends without credit, it reports that the credit is exceeded.
		if err != nil && sending.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		told.Sent++
	}
	close(unanswered)
	select {
	case err = <-failed:
	case <-time.After(waitForAnswers):
		err = errors.New("no answers")
	}
	if err != nil {
		return err
	}
	return sender.Close(context.Background())
}

func consume(session *amqp.Session, asked ask, told *report, started time.Time) error {
	options := &amqp.ReceiverOptions{Credit: asked.Credit}
	if asked.Drain > 0 {
		options.Credit = -1
	}
	receiver, err := session.NewReceiver(context.Background(), asked.Consume, options)
	if err != nil {
		return err
	}
	digest := sha256.New()
	take := func(message *amqp.Message) error {
		body := message.GetData()
		digest.Write(body)
		told.Sha256 = hex.EncodeToString(digest.Sum(nil))
		number, _ := strconv.Atoi(strings.SplitN(string(body), " ", 2)[0])
		told.Numbers = append(told.Numbers, number)
		countNow(&told.Received, started)
		return receiver.AcceptMessage(context.Background(), message)
	}
	if asked.Drain > 0 {
		if err = receiver.IssueCredit(uint32(asked.Drain)); err != nil {
			return err
		}
		// A drain before the credit was sent takes it back.
		time.Sleep(200 * time.Millisecond)
		if err = receiver.DrainCredit(context.Background(), nil); err != nil {
			return err
		}
		// Deliveries from before the end of the drain may take a moment.
		for {
			moment, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			message, err := receiver.Receive(moment, nil)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return receiver.Close(context.Background())
			}
			if err != nil {
				return err
			}
			if err = take(message); err != nil {
				return err
			}
		}
	}
	receiving, cancel := context.WithDeadline(context.Background(), started.Add(time.Duration(asked.Seconds*float64(time.Second))))
	defer cancel()
	for len(told.Numbers) < asked.Count {
		message, err := receiver.Receive(receiving, nil)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
		if err = take(message); err != nil {
			return err
		}
	}
	return receiver.Close(context.Background())
}

func main() {
	asked := struct {
		Links []json.RawMessage `json:"links"`
	}{}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Args[3]), &asked))
	connection, err := amqp.Dial(context.Background(), fmt.Sprintf("amqp://%s:%s", os.Args[1], os.Args[2]),
		&amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest")})
	fail(err)
	session, err := connection.NewSession(context.Background(), nil)
	fail(err)
	started := time.Now()
	told := make([]report, len(asked.Links))
	var links sync.WaitGroup
	for place, raw := range asked.Links {
		link := ask{Count: 1 << 40, Seconds: 1 << 20, Outstanding: 50, Size: 100, Credit: 10}
		fail(json.Unmarshal(raw, &link))
		told[place] = report{Accepted: []int{}, Rejected: []int{}, Released: []int{}, Reasons: []string{}, Received: []int{}, Numbers: []int{}}
		links.Add(1)
		go func() {
			defer links.Done()
			run := consume
			if link.Publish != nil {
				run = publish
			}
			if err := run(session, link, &told[place], started); err != nil {
				told[place].Error = err.Error()
			}
		}()
	}
	links.Wait()
	fail(connection.Close())
	text, err := json.Marshal(told)
	fail(err)
	fmt.Println(string(text))
}
