package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/quorumlock/quorumlock/fencing"
	"github.com/quorumlock/quorumlock/fencing/httpfence"
)

// The service checks at the door and once more in the step that writes.
func Example() {
	var guard fencing.MemGuard
	var price string

	mux := http.NewServeMux()
	mux.HandleFunc("PUT /price/{value}", func(w http.ResponseWriter, r *http.Request) {
		resource, token, _ := httpfence.FromContext(r.Context())
		err := guard.Do(r.Context(), resource, token, func() error {
			price = r.PathValue("value")
			return nil
		})
		if err != nil {
			httpfence.Refuse(w, err) // as the check at the door would
		}
	})
	resource := func(*http.Request) string { return "price" }
	service := httptest.NewServer(httpfence.Handler(&guard, resource, mux))
	defer service.Close()

	client := &http.Client{Transport: &httpfence.Transport{}}
	put := func(value string, token fencing.Token) error {
		ctx := httpfence.NewContext(context.Background(), "price", token)
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, service.URL+"/price/"+value, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return httpfence.Check(resp)
	}

	fmt.Println(put("200", 34))
	err := put("100", 33) // a holder that was frozen past its lease
	fmt.Println(err)
	fmt.Println(errors.Is(err, fencing.ErrStale), price)
	// Output:
	// <nil>
	// fencing: stale token 33 for "price": 34 was admitted
	// true 200
}
