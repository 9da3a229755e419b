package main

import (
	"encoding/json"
	"maps"
	"slices"
)

// A row is what one job measured on one system, at one size.
type row struct {
	Job     string
	System  string
	Callers int    // 0 where it says nothing
	Locks   int    // held; 0 where it says nothing
	Where   string // at which replica, or how
	Rounds  int    // of which the values are the medians
	Note    string
	Values  map[string]float64 // what was measured, and nothing else
}

// key is what distinguishes rows.
type key struct {
	job, system    string
	callers, locks int
	where          string
}

func (r *row) key() key { return key{r.Job, r.System, r.Callers, r.Locks, r.Where} }

// MarshalJSON makes one flat object: what was not measured is not in it.
func (r row) MarshalJSON() ([]byte, error) {
	flat := map[string]any{"job": r.Job, "system": r.System}
	if r.Callers > 0 {
		flat["callers"] = r.Callers
	}
	if r.Locks > 0 {
		flat["locks"] = r.Locks
	}
	if r.Where != "" {
		flat["where"] = r.Where
	}
	if r.Rounds > 0 {
		flat["rounds"] = r.Rounds
	}
	if r.Note != "" {
		flat["note"] = r.Note
	}
	for name, v := range r.Values {
		flat[name] = v
	}
	return json.Marshal(flat)
}

// rows collects rounds and makes them rows.
type rows struct {
	list   []*row
	rounds map[key]map[string][]float64
}

// add notes one round of a row. The row's place is that of its first round, and
// its values are the medians of all rounds.
func (rs *rows) add(r row) {
	if rs.rounds == nil {
		rs.rounds = make(map[key]map[string][]float64)
	}
	values := rs.rounds[r.key()]
	if values == nil {
		values = make(map[string][]float64)
		rs.rounds[r.key()] = values
		first := r
		first.Values, first.Rounds = make(map[string]float64), 0
		rs.list = append(rs.list, &first)
	}
	kept := rs.find(r.key())
	kept.Rounds++
	for name, v := range r.Values {
		values[name] = append(values[name], v)
		kept.Values[name] = median(values[name])
	}
}

// find returns the row of a key, or nil.
func (rs *rows) find(k key) *row {
	i := slices.IndexFunc(rs.list, func(r *row) bool { return r.key() == k })
	if i < 0 {
		return nil
	}
	return rs.list[i]
}

// value returns one value of a row, and whether it was measured.
func (rs *rows) value(k key, name string) (float64, bool) {
	r := rs.find(k)
	if r == nil {
		return 0, false
	}
	v, ok := r.Values[name]
	return v, ok
}

// of returns the rows of a job.
func (rs *rows) of(job string) (found []*row) {
	for _, r := range rs.list {
		if r.Job == job {
			found = append(found, r)
		}
	}
	return found
}

// names returns the names of a row's values, sorted.
func (r *row) names() []string { return slices.Sorted(maps.Keys(r.Values)) }
